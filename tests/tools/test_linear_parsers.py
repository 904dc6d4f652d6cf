"""Whatever the policy writes is read in time that grows as its length does."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.tools.parsers import HermesParser, LlamaParser, ToolCallParser
from benchmarks import parsers as benchmark
from benchmarks.parsers import seconds
from benchmarks.parsing import PARSERS, TEXTS, of_length

SHORT, LONG = 8 * 1024, 32 * 1024
LEAST_S = 0.001
"""Less than that is not told apart from the clock's own steps."""


def growth(parser: ToolCallParser, name: str) -> float:
    """Time for four times the text: 4 where it is linear, 16 where it is quadratic."""
    short, long = of_length(name, SHORT), of_length(name, LONG)
    return seconds(parser, long) / max(LEAST_S, seconds(parser, short))


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("name", TEXTS)
def test_four_times_the_text_takes_about_four_times_as_long(parser: str, name: str) -> None:
    # a machine that does other things may slow one of the two readings down, not each time the
    # longer one
    assert min(growth(PARSERS[parser](), name) for _ in range(3)) < 10


@pytest.mark.parametrize("name", TEXTS)
def test_an_adversarial_text_has_the_length_asked_for(name: str) -> None:
    assert SHORT <= len(of_length(name, SHORT)) <= 2 * SHORT


def test_the_benchmark_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main(["--characters", "500", "--json", str(tmp_path / "figures.json")])

    assert '"slowest of' in (tmp_path / "figures.json").read_text()
    assert "characters of a text" in capsys.readouterr().out


def test_the_call_behind_a_string_that_was_not_closed_is_read() -> None:
    parsed = LlamaParser().parse(
        '{"name": "f", "parameters": {"q": "half}} {"name": "g", "parameters": {}}'
    )

    assert [found.kind for found in parsed.problems] == ["malformed_json"]
    assert [call.name for call in parsed.tool_calls] == ["g"]


def test_what_stands_within_a_faulty_call_is_no_call() -> None:
    # one bracket is missing at the end: the argument named "user" is not a second call
    parsed = LlamaParser().parse('{"name": "f", "parameters": {"user": {"name": "x"}')

    assert [found.raw for found in parsed.problems] == [
        '{"name": "f", "parameters": {"user": {"name": "x"}'
    ]
    assert parsed.tool_calls == ()


@pytest.mark.parametrize("size", [500, 505, 510, 511, 512, 513, 520, 4090, 4096, 5000])
def test_a_value_of_any_length_is_read_whole(size: int) -> None:
    # the decoder is given windows of 512, 4,096, ... characters
    text = "é" * size
    parsed = HermesParser().parse(
        f'<tool_call>{{"name": "f", "arguments": {{"a": "{text}", "n": 123}}}}</tool_call>'
    )

    assert parsed.problems == ()
    assert parsed.tool_calls[0].arguments == {"a": text, "n": 123}


@pytest.mark.parametrize(
    "fault", ["NaN", "-Infinity", '{"a": 1, "a": 2}', "9" * 5000, "[" * 70, '"\\ud800"', "x"]
)
def test_a_fault_far_inside_is_found_where_it_stands(fault: str) -> None:
    body = f'{{"name": "f", "arguments": {{"a": "{"a" * 5000}", "b": {fault}, "c": 1}}}}'
    parsed = HermesParser().parse(f"<tool_call>{body}</tool_call>")

    assert [found.kind for found in parsed.problems] == ["malformed_json"]
    assert parsed.tool_calls == ()
