"""Whatever the policy writes is read in steps that grow as its length does.

Steps are lines of Python, so that no machine's load decides. What a call into C takes for a text is
measured by ``benchmarks/parsers.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.tools.parsers import HermesParser, LlamaParser, ToolCallParser
from benchmarks import parsers as benchmark
from benchmarks.parsing import PARSERS, TEXTS, of_length

SHORT, LONG = 4 * 1024, 16 * 1024
PROLOGUE = 200
"""Steps of a text of no length, or of what a parser does once."""


def steps(parser: ToolCallParser, text: str) -> int:
    """Lines of agentrl that it takes to read the text."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if "agentrl" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parser.parse(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("parser", PARSERS)
def test_four_times_the_text_takes_four_times_the_steps(parser: str) -> None:
    grown = {}
    for name in TEXTS:
        short, long = of_length(name, SHORT), of_length(name, LONG)
        assert SHORT <= len(short) <= 2 * SHORT
        few, many = (steps(PARSERS[parser](), text) for text in (short, long))
        grown[name] = many / (few + PROLOGUE)
    # 4 where steps are linear, 16 where they are quadratic
    assert {name: growth for name, growth in grown.items() if growth > 6} == {}


@pytest.mark.tooling
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
    "fault",
    [
        *("NaN", "-Infinity", "1e999", "-1e999", "9" * 400 + ".0"),
        *('{"a": 1, "a": 2}', "9" * 5000, "[" * 70, '"\\ud800"', "x"),
    ],
)
def test_a_fault_far_inside_is_found_where_it_stands(fault: str) -> None:
    body = f'{{"name": "f", "arguments": {{"a": "{"a" * 5000}", "b": {fault}, "c": 1}}}}'
    parsed = HermesParser().parse(f"<tool_call>{body}</tool_call>")

    assert [found.kind for found in parsed.problems] == ["malformed_json"]
    assert parsed.tool_calls == ()


def test_a_language_that_never_ends_is_read_in_linear_time() -> None:
    # A pattern's steps are not counted: one that tries each length again takes many minutes here.
    text = of_length("fences: a language that never ends", 2**18)

    assert PARSERS["fences"]().parse(text).message["content"] == text
