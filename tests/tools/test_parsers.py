"""Completions as messages: every call is read or answered, none is dropped in silence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.tools import HermesParser, PlainParser, load_parser
from agentrl.types import CallProblem, ParsedMessage, ToolCall

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def parse(text: str) -> ParsedMessage:
    return HermesParser().parse(text)


def problem(text: str) -> CallProblem:
    parsed = parse(text)
    assert not parsed.tool_calls
    assert len(parsed.problems) == 1
    return parsed.problems[0]


def block(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def test_a_call_and_the_text_around_it() -> None:
    parsed = parse(f"Let me see. {ADD} Done.")

    assert parsed.tool_calls == (ToolCall("call_0", "add", {"a": 1}),)
    assert parsed.problems == ()
    assert parsed.message == {
        "role": "assistant",
        "content": "Let me see.  Done.",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "add", "arguments": {"a": 1}},
            }
        ],
    }


def test_text_alone_is_content() -> None:
    assert parse(" The answer is 4.\n").message == {
        "role": "assistant",
        "content": "The answer is 4.",
    }


def test_calls_and_problems_share_one_sequence_of_ids() -> None:
    parsed = parse(ADD + block("{oops}") + ADD)

    assert [call.id for call in parsed.tool_calls] == ["call_0", "call_2"]
    assert [found.id for found in parsed.problems] == ["call_1"]


def test_what_is_no_call_stays_in_the_content() -> None:
    assert (
        parse(f"Hm {block('{oops}')}").message["content"]
        == "Hm <tool_call>{oops}</tool_call>"
    )


def test_thoughts_are_set_apart() -> None:
    parsed = parse(f"<think>\nI add.\n</think>\n\n{ADD}")

    assert parsed.message["reasoning_content"] == "I add."
    assert parsed.message["content"] == ""
    assert len(parsed.tool_calls) == 1


def test_thoughts_whose_opening_tag_the_prompt_had() -> None:
    assert parse(f"I add.</think>{ADD}").message["reasoning_content"] == "I add."


def test_a_closing_think_within_a_call_is_the_calls() -> None:
    parsed = parse(block('{"name": "say", "arguments": {"text": "</think>"}}'))

    assert "reasoning_content" not in parsed.message
    assert parsed.tool_calls[0].arguments == {"text": "</think>"}


def test_a_call_within_thoughts_is_a_thought() -> None:
    parsed = parse(f"<think>maybe {ADD}</think>4")

    assert (parsed.tool_calls, parsed.problems, parsed.message["content"]) == ((), (), "4")


def test_thoughts_that_never_end_are_thoughts() -> None:
    parsed = parse("<think>hm, hm")

    assert (parsed.message["content"], parsed.message["reasoning_content"]) == (
        "",
        "hm, hm",
    )


def test_a_closing_tag_within_a_json_string_does_not_close() -> None:
    parsed = parse(block('{"name": "say", "arguments": {"text": "</tool_call>"}}'))

    assert parsed.tool_calls[0].arguments == {"text": "</tool_call>"}


def test_arguments_given_as_a_json_string_are_read() -> None:
    assert parse(block('{"name": "f", "arguments": "{\\"a\\": 1}"}')).tool_calls[
        0
    ].arguments == {"a": 1}


def test_many_brackets_side_by_side_are_not_deep() -> None:
    body = '{"name": "f", "arguments": {"a": [' + ", ".join(["[1]"] * 200) + "]}}"

    assert len(parse(block(body)).tool_calls[0].arguments["a"]) == 200


def test_a_call_without_arguments_has_none() -> None:
    assert parse(block('{"name": "now"}')).tool_calls[0].arguments == {}


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        ("", "malformed_json", "Expecting value at character 0"),
        ('{"name": "f", "arguments": {"a": 1}', "malformed_json", "at character"),
        ("{'name': 'f'}", "malformed_json", "double quotes"),
        (
            '{"name": "f", "arguments": {"a": NaN}}',
            "malformed_json",
            "NaN is no JSON number",
        ),
        (
            '{"name": "f", "arguments": {"a": -1e999}}',
            "malformed_json",
            "-1e999 is too large",
        ),
        ('{"name": "f", "name": "g"}', "malformed_json", "the key 'name' is given twice"),
        (
            '{"name": "f", "arguments": {"a": "\\ud800"}}',
            "malformed_json",
            "without its other half",
        ),
        (
            '{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}",
            "malformed_json",
            "Exceeds the limit",
        ),
        ("[" * 100_000, "malformed_json", "nested too deeply"),
        (
            '{"name": "f", "arguments": {"a": ' + "[" * 70 + "]" * 70 + "}}",
            "malformed_json",
            "nested too deeply",
        ),
        ('{"name": "f"} {"name": "g"}', "malformed_json", "one block holds one call"),
        ('[{"name": "f"}]', "malformed_json", "not a list"),
        ('{"arguments": {}}', "missing_name", "the keys are ['arguments']"),
        ('{"name": 3, "arguments": {}}', "missing_name", "got a number"),
        ('{"name": " "}', "missing_name", "got a string"),
        ('{"name": "f", "arguments": [1]}', "bad_arguments", "got a list"),
        ('{"name": "f", "arguments": null}', "bad_arguments", "got null"),
        (
            '{"name": "f", "arguments": "a=1"}',
            "bad_arguments",
            "is a string that is no valid JSON",
        ),
        ('{"name": "f", "arguments": "{} x"}', "bad_arguments", "'x' follows it"),
        (
            '{"name": "f", "parameters": {}}',
            "bad_arguments",
            "'parameters' is no key of a call",
        ),
    ],
)
def test_what_cannot_be_read_is_told_by_kind(body: str, kind: str, detail: str) -> None:
    found = problem(block(body))

    assert found.kind == kind
    assert detail in found.detail
    assert found.raw == block(body)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 1}}',
        '<tool_call>{"name": "add", "argum',
        "<tool_call>",
        "4</tool_call>",
    ],
)
def test_a_block_that_is_not_closed_or_not_opened(text: str) -> None:
    assert problem(text).kind == "unclosed"


def test_a_call_within_a_call_ends_the_first_unclosed() -> None:
    parsed = parse('<tool_call>{"name": "f", ' + ADD)

    assert [(found.kind, found.raw) for found in parsed.problems] == [
        ("unclosed", '<tool_call>{"name": "f", ')
    ]
    assert [call.id for call in parsed.tool_calls] == ["call_1"]


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "f"}',
        '{"a',
        '"',
        "x",
        "\n",
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join))
def test_any_text_is_read_and_numbered_without_gaps(text: str) -> None:
    parsed = parse(text)
    ids = sorted(
        int(item.id.removeprefix("call_"))
        for item in (*parsed.tool_calls, *parsed.problems)
    )

    assert ids == list(range(len(ids)))
    json.dumps(parsed.message)
    for found in parsed.problems:
        assert found.raw in text


def test_the_plain_parser_finds_no_calls() -> None:
    parsed = PlainParser().parse(f"<think>a</think> {ADD}")

    assert (parsed.tool_calls, parsed.message["content"]) == ((), ADD)


def test_parsers_by_name() -> None:
    own = load_parser("agentrl.tools.parsers:HermesParser")

    assert [type(p) for p in (load_parser("hermes"), load_parser("none"), own)] == [
        HermesParser,
        PlainParser,
        HermesParser,
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "herms",
            r"='herms' is unknown; did you mean 'hermes'\?; choose one of hermes, glm, ",
        ),
        ("json:loads", r"RolloutSpec\.parser='json:loads' is no parser"),
    ],
)
def test_a_name_that_is_no_parser_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_parser(name)
