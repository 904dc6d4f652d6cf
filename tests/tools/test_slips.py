"""A slip in one call is told, and takes no other call with it."""

from __future__ import annotations

import pytest

from agentrl.tools.parsers import (
    DeepSeekParser,
    GLMParser,
    HarmonyParser,
    HermesParser,
    LlamaParser,
    ToolCallParser,
)
from agentrl.types import CallProblem

NEXT = "<tool_call>g\n<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    "slip",
    [
        "<arg_key>a<arg_value>1</arg_value>",
        "<arg_key>a</arg_key><arg_value>1</arg_key>",
        "<arg_key>a</arg_key><arg_value>1",
        "<arg_key>a</arg_key>1</arg_value>",
        "<arg_key>a</arg_value><arg_value>1</arg_value>",
        "<arg_key>a</arg_key><arg_value>1<arg_value>",
        "<arg_key>a",
        "<arg_key>a</arg_key><arg_value>1<arg_key>c</arg_key><arg_value>3</arg_value>",
    ],
)
def test_a_glm_call_with_a_slip_between_key_and_value_leaves_the_next_one_whole(
    slip: str,
) -> None:
    first = f"<tool_call>f\n{slip}\n</tool_call>"
    parsed = GLMParser().parse(first + NEXT)

    assert [(found.kind, found.raw) for found in parsed.problems] == [
        ("bad_arguments", first)
    ]
    assert "is no <arg_key> with its <arg_value>" in parsed.problems[0].detail
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("g", {"b": 2})]


def test_a_glm_value_may_hold_the_tags_of_calls() -> None:
    code = "</tool_call><tool_call>"
    parsed = GLMParser().parse(
        f"<tool_call>f<arg_key>a</arg_key><arg_value>{code}</arg_value></tool_call>{NEXT}"
    )

    assert [call.arguments for call in parsed.tool_calls] == [{"a": code}, {"b": 2}]


@pytest.mark.parametrize(
    "written", ['{"nam": "f", "parameter": {}}', "{}", '{"answer": 4}']
)
def test_what_a_python_tag_opens_is_a_call_and_no_answer(written: str) -> None:
    parsed = LlamaParser().parse(f"<|python_tag|>{written}")

    assert [found.kind for found in parsed.problems] == ["missing_name"]
    assert parsed.problems[0].raw == f"<|python_tag|>{written}"


@pytest.mark.parametrize(
    "body",
    [
        "{" + ", ".join(f'"key{n}": 0' for n in range(5000)) + "}",
        f'{{"name": "f", "{"k" * 50_000}": 1}}',
        f'{{"name": "f", "{"k" * 50_000}": 1, "{"k" * 50_000}": 2}}',
    ],
)
def test_what_is_told_of_a_slip_is_short_however_long_the_call_is(body: str) -> None:
    (problem,) = HermesParser().parse(f"<tool_call>{body}</tool_call>").problems

    assert len(problem.detail) < 1000


@pytest.mark.parametrize(
    ("parser", "written"),
    [
        (HermesParser, "</tool_call>"),
        (HermesParser, "<tool_call>{</tool_call>"),
        (HermesParser, '<tool_call>{"name": "f"}</tool_call>'),
        (GLMParser, "<tool_call>f</tool_call>"),
        (DeepSeekParser, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (LlamaParser, '{"name": "f"}; '),
        (HarmonyParser, "<|channel|>commentary to=functions.f<|message|>{}<|call|>"),
    ],
)
def test_a_thousand_calls_of_a_completion_are_counted_though_most_of_them_are_not_read(
    parser: type[ToolCallParser], written: str
) -> None:
    parsed = parser().parse(
        f"so {written * 1000}" if parser is not HarmonyParser else written * 1000
    )
    *read, last = sorted(
        [*parsed.tool_calls, *parsed.problems],
        key=lambda entry: int(entry.id.removeprefix("call_")),
    )

    assert len(read) == 256
    assert last == CallProblem("call_256", "too_many", last.detail, "", 744)
    assert (
        last.detail
        == "744 more calls of this turn were not read: 256 are; make fewer at once"
    )
