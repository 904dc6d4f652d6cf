"""The calls of each family: every one is read or answered, none is dropped in silence."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tools.parsers import (
    DeepSeekParser,
    GLMParser,
    HarmonyParser,
    HermesParser,
    LlamaParser,
    ToolCallParser,
)
from agentrl.types import ParsedMessage, ToolCall, ToolSpec

ADD = {"a": 1, "b": "é"}
ADD_JSON = json.dumps(ADD, ensure_ascii=False)
TOOL = ToolSpec(
    "add",
    "Adds.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
    },
)


def deepseek(*bodies: str) -> str:
    calls = "\n".join(f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>" for body in bodies)
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def v3(name: str, arguments: str) -> str:
    return f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"


def glm(name: str, **arguments: str) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def harmony(name: str, arguments: str) -> str:
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"
    )


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


ONE_CALL: dict[type[ToolCallParser], tuple[str, ...]] = {
    LlamaParser: (
        llama("add", ADD_JSON),
        f"<|python_tag|>{llama('add', ADD_JSON)}",
        '<|python_tag|>add.call(a=1, b="é")',
        f'{{"type": "function", "name": "add", "arguments": {ADD_JSON}}}',
    ),
    DeepSeekParser: (deepseek(v3("add", ADD_JSON)), deepseek(f"add<｜tool▁sep｜>{ADD_JSON}")),
    GLMParser: (glm("add", a="1", b="é"), "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value>"  # noqa: E501
                "<arg_key>b</arg_key><arg_value>é</arg_value></tool_call>"),
    HarmonyParser: (
        harmony("add", ADD_JSON),
        f" to=functions.add<|channel|>commentary json<|message|>{ADD_JSON}",
        f"<|channel|>analysis<|message|><|end|><|start|>assistant{harmony('add', ADD_JSON)}<|call|>",  # noqa: E501
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("parser", "text"),
    [(parser, text) for parser, texts in ONE_CALL.items() for text in texts],
)
def test_one_call(parser: Callable[[], ToolCallParser], text: str) -> None:
    parsed = parser().parse(text, (TOOL,))

    assert parsed.tool_calls == (ToolCall("call_0", "add", ADD),)
    assert parsed.problems == ()
    assert parsed.message["content"] == ""


@pytest.mark.parametrize(
    ("parser", "text", "content"),
    [
        (LlamaParser, f"I add. {llama('add', '{}')}", "I add."),
        (DeepSeekParser, f"I add.{deepseek(v3('add', '{}'))}", "I add."),
        (GLMParser, f"\nI add.\n{glm('add')} There.", "I add.\n There."),
        (
            HarmonyParser,
            "<|channel|>commentary<|message|>I "
            f"add.<|end|><|start|>assistant{harmony('add', '{}')}",
            "I add.",
        ),
    ],
)
def test_words_around_a_call_are_kept(
    parser: Callable[[], ToolCallParser], text: str, content: str
) -> None:
    parsed = parser().parse(text)

    assert parsed.tool_calls == (ToolCall("call_0", "add", {}),)
    assert parsed.message["content"] == content


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (LlamaParser, f"<think>Hm.</think>{llama('add', '{}')}"),
        (DeepSeekParser, f"Hm.\n</think>\n\n{deepseek(v3('add', '{}'))}"),
        (GLMParser, f"\n<think>Hm.</think>\n{glm('add')}"),
        (
            HarmonyParser,
            f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{harmony('add', '{}')}",
        ),
    ],
)
def test_thoughts_are_set_apart(parser: Callable[[], ToolCallParser], text: str) -> None:
    parsed = parser().parse(text)

    assert parsed.message["reasoning_content"] == "Hm."
    assert [call.name for call in parsed.tool_calls] == ["add"]


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (DeepSeekParser, deepseek(v3("f", "{}"), v3("g", "{}"))),
        (GLMParser, glm("f") + "\n" + glm("g")),
    ],
)
def test_several_calls_in_their_order(
    parser: Callable[[], ToolCallParser], text: str
) -> None:
    parsed = parser().parse(text)

    assert [(call.id, call.name) for call in parsed.tool_calls] == [
        ("call_0", "f"),
        ("call_1", "g"),
    ]


@pytest.mark.parametrize("between", ["; ", "\n", ""])
def test_llamas_second_call_of_a_turn_is_answered(between: str) -> None:
    parsed = LlamaParser().parse(llama("f", "{}") + between + llama("g", "{}"))

    assert [call.name for call in parsed.tool_calls] == ["f"]
    assert "one call a turn" in parsed.problems[0].detail
    assert parsed.problems[0].raw == llama("g", "{}")


def test_harmonys_second_call_of_a_turn_is_answered() -> None:
    parsed = HarmonyParser().parse(
        f"{harmony('f', '{}')}<|call|><|start|>assistant{harmony('g', '{}')}"
    )

    assert [call.name for call in parsed.tool_calls] == ["f"]
    assert [found.kind for found in parsed.problems] == ["second_call"]


def test_an_answer_in_json_is_no_call_of_llamas() -> None:
    parsed = LlamaParser().parse('{"answer": 4}')

    assert (parsed.tool_calls, parsed.problems, parsed.message["content"]) == (
        (),
        (),
        '{"answer": 4}',
    )


def test_glms_values_are_what_the_schema_says() -> None:
    parsed = GLMParser().parse(glm("add", a="12", b="12", c="[1]"), (TOOL,))

    assert parsed.tool_calls[0].arguments == {"a": 12, "b": "12", "c": [1]}


def test_glms_values_without_a_schema_are_json_where_they_read_as_json() -> None:
    assert GLMParser().parse(glm("f", a="12", b="word")).tool_calls[0].arguments == {
        "a": 12,
        "b": "word",
    }


def test_a_glm_value_may_hold_a_closing_tag() -> None:
    assert GLMParser().parse(glm("f", code="</tool_call>")).tool_calls[0].arguments == {
        "code": "</tool_call>"
    }


def test_a_harmony_answer_is_content() -> None:
    parsed = HarmonyParser().parse(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4"
    )

    assert parsed.message == {
        "role": "assistant",
        "content": "4",
        "reasoning_content": "Hm.",
    }


@pytest.mark.parametrize(
    ("parser", "text", "kind", "detail"),
    [
        (LlamaParser, '{"name": "f", "parameters": {', "malformed_json", "no valid JSON"),
        (LlamaParser, '{"name": "f", "parameters": [1]}', "bad_arguments", "got a list"),
        (LlamaParser, '{"name": 3, "parameters": {}}', "missing_name", "got a number"),
        (LlamaParser, '{"function": "f", "parameters": {}}', "missing_name", "the keys are"),
        (LlamaParser, '{"name": "f", "args": {}}', "bad_arguments", "'args' is no key of a call"),
        (LlamaParser, "<|python_tag|>print(1)", "malformed_json", "no call follows"),
        (LlamaParser, "<|python_tag|>f.call(1)", "bad_arguments", "passed by name, as KEY="),
        (LlamaParser, "<|python_tag|>f.call(a=__import__('os'))", "bad_arguments", "cannot be read"),  # noqa: E501
        (LlamaParser, "<|python_tag|>f.call(a=b)", "bad_arguments", "read: a must be a literal"),
        (LlamaParser, "<|python_tag|>f.call(a={[1]: 2})", "bad_arguments", "double quotes"),
        (LlamaParser, "<|python_tag|>f.call(**{})", "bad_arguments", "passed by name, as KEY="),
        (LlamaParser, r"<|python_tag|>f.call(a='\ud800')", "bad_arguments", "its other half"),
        (LlamaParser, "<|python_tag|>f.call(a=1, a=2)", "bad_arguments", "'a' is given twice"),
        (LlamaParser, "<|python_tag|>f.call(a={1: 2, '1': 3})", "bad_arguments", "double quotes"),
        (
            LlamaParser,
            f"<|python_tag|>f.call(a={'[' * 65}{']' * 65})",
            "bad_arguments",
            "a is no valid JSON: it is nested too deeply",
        ),
        (DeepSeekParser, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f", "unclosed", "end it with"),
        (DeepSeekParser, "<｜tool▁call▁end｜>", "unclosed", "closes nothing"),
        (DeepSeekParser, deepseek("{}"), "missing_name", "has no <｜tool▁sep｜>"),
        (DeepSeekParser, deepseek("<｜tool▁sep｜>{}"), "missing_name", "has no name"),
        (DeepSeekParser, deepseek(v3("f", "{a}")), "malformed_json", "no valid JSON"),
        (DeepSeekParser, deepseek(v3("f", "[1]")), "bad_arguments", "got a list"),
        (GLMParser, "<tool_call>f\n<arg_key>a</arg_key>", "unclosed", "not closed"),
        (GLMParser, "</tool_call>", "unclosed", "closes nothing"),
        (GLMParser, "<tool_call></tool_call>", "missing_name", "does not begin with the tool's "
                                                               "name"),
        (GLMParser, "<tool_call>f <arg_key>a</arg_key> "
                    "1</tool_call>", "bad_arguments", "is no <arg_key> with its"),
        (GLMParser, "<tool_call>f {}</tool_call>", "bad_arguments", "'{}' is no <arg_key>"),
        (
            GLMParser,
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
            "bad_arguments",
            "the key 'a' is given twice",
        ),
        (HarmonyParser, harmony("f", "{"), "malformed_json", "no valid JSON"),
        (HarmonyParser, harmony("f", "3"), "bad_arguments", "got a number"),
        (HarmonyParser, harmony("", "{}"), "missing_name", "has no name"),
        (HarmonyParser, "<|channel|>commentary "
                        "to=functions.f", "unclosed", "ends before its arguments"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_by_kind(
    parser: Callable[[], ToolCallParser], text: str, kind: str, detail: str
) -> None:
    parsed = parser().parse(text)

    assert parsed.tool_calls == ()
    assert [found.kind for found in parsed.problems] == [kind]
    assert detail in parsed.problems[0].detail
    assert parsed.problems[0].raw in text
    assert parsed.problems[0].raw in parsed.message["content"]


MARKS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "<think>",
            "</think>",
        ),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "```json\n",
            "\n```",
        ),
        *(
            "<|python_tag|>",
            "f.call(",
            '{"name": "f", "parameters": {}}',
            '{"name"',
            ")",
            "{",
            "}",
            '"',
            "f",
            "\n",
        ),
        *(
            "<|channel|>",
            "analysis",
            "commentary",
            "<|message|>",
            "<|end|>",
            "<|start|>",
            "to=functions.f",
            "<|call|>",
        ),
    ]
)


@pytest.mark.parametrize(
    "parser", [HermesParser, LlamaParser, DeepSeekParser, GLMParser, HarmonyParser]
)
@given(text=st.lists(st.one_of(MARKS, st.text(max_size=4)), max_size=14).map("".join))
def test_any_text_is_read_and_numbered_without_gaps(
    parser: Callable[[], ToolCallParser], text: str
) -> None:
    parsed: ParsedMessage = parser().parse(text, (TOOL,))
    ids = sorted(
        int(item.id.removeprefix("call_"))
        for item in (*parsed.tool_calls, *parsed.problems)
    )

    assert ids == list(range(len(ids)))
    json.dumps(parsed.message)
    for found in parsed.problems:
        assert found.raw in text
        assert found.raw.strip() in parsed.message["content"]
