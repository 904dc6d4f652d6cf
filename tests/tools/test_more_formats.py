"""Qwen3-Coder's, Mistral's and Python's syntax of calls, and blocks of code as calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tools.parsers import (
    FenceParser,
    HermesParser,
    MistralParser,
    PythonicParser,
    QwenCoderParser,
    ToolCallParser,
)
from agentrl.tools.parsers.base import BUILT_IN
from agentrl.types import ToolCall, ToolSpec

ADD = {"a": 1, "b": "é", "c": [1, {"x": None}]}
TOOL = ToolSpec(
    "add",
    "Adds.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
    },
)
PYTHON = ToolSpec("python", "Runs.", {"properties": {"code": {}}, "required": ["code"]})
SHELL = ToolSpec("shell", "Runs.", {"properties": {"command": {}}, "required": ["command"]})
PAIR = ToolSpec("pair", "Two.", {"properties": {"x": {}, "y": {}}, "required": ["x", "y"]})


def coder(name: str, **values: str) -> str:
    pairs = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


def mistral(*calls: tuple[str, object]) -> str:
    written = [
        {"name": name, "arguments": arguments, "id": "abc123def"}
        for name, arguments in calls
    ]
    return f"[TOOL_CALLS]{json.dumps(written, ensure_ascii=False)}"


ONE_CALL: list[tuple[type[ToolCallParser], str]] = [
    (QwenCoderParser, coder("add", a="1", b="é", c='[1, {"x": null}]')),
    (MistralParser, mistral(("add", ADD))),
    (MistralParser, f"[TOOL_CALLS] {json.dumps({'name': 'add', 'arguments': ADD})}"),
    (MistralParser, f"[TOOL_CALLS]add[ARGS]{json.dumps(ADD)}"),
    (MistralParser, f"[TOOL_CALLS]add[CALL_ID]x1y2z3[ARGS]{json.dumps(ADD)}"),
    (PythonicParser, '[add(a=1, b="é", c=[1, {"x": None}])]'),
    (PythonicParser, '[add(a=1, b="é", c=[1, {"x": null}],)]'),
    (PythonicParser, "<|python_start|>[add(a=1, b='é', c=[1, {'x': None}])]<|python_end|>"),
    (
        PythonicParser,
        "<|tool_call_start|>[add(a=1, b='é', c=[1, {'x': null}])]<|tool_call_end|>",
    ),
]


@pytest.mark.parametrize(("parser", "text"), ONE_CALL)
def test_one_call(parser: Callable[[], ToolCallParser], text: str) -> None:
    parsed = parser().parse(text, (TOOL,))

    assert parsed.tool_calls == (ToolCall("call_0", "add", ADD),)
    assert parsed.problems == ()
    assert parsed.message["content"] == ""


@pytest.mark.parametrize(
    ("parser", "text", "content"),
    [
        (
            QwenCoderParser,
            f"I add.\n{coder('f')}\n{coder('g')} There.",
            "I add.\n\n There.",
        ),
        (MistralParser, f"I add. {mistral(('f', {}), ('g', {}))} There.", "I add.  There."),
        (
            MistralParser,
            "I add.[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{} There.",
            "I add. There.",
        ),
        (PythonicParser, "I add.\n[f(), g()]\nThere.", "I add.\n\nThere."),
    ],
)
def test_several_calls_in_their_order_and_words_around_them(
    parser: Callable[[], ToolCallParser], text: str, content: str
) -> None:
    parsed = parser().parse(f"<think>Hm.</think>{text}")

    assert [(call.id, call.name) for call in parsed.tool_calls] == [
        ("call_0", "f"),
        ("call_1", "g"),
    ]
    assert parsed.message["content"] == content
    assert parsed.message["reasoning_content"] == "Hm."


@pytest.mark.parametrize(
    ("parser", "text", "kind", "detail"),
    [
        (QwenCoderParser, "<tool_call>{}</tool_call>", "missing_name", "<function=NAME>"),
        (
            QwenCoderParser,
            coder("f", a="1").replace("</function>", ""),
            "bad_arguments",
            "''",
        ),
        (QwenCoderParser, coder("f", a="1") + coder("f")[:-12], "unclosed", "</tool_call>"),
        (
            QwenCoderParser,
            coder("f", a="1").replace(
                "</function>", "<parameter=a>2</parameter></function>"
            ),
            "bad_arguments",
            "'a' is given twice",
        ),
        (
            QwenCoderParser,
            coder("f", a="1").replace("</parameter>", ""),
            "bad_arguments",
            "1",
        ),
        (MistralParser, "[TOOL_CALLS] and then", "malformed_json", "no call follows"),
        (MistralParser, "[TOOL_CALLS][]", "malformed_json", "has no call"),
        (
            MistralParser,
            '[TOOL_CALLS][{"name": "f", "arguments": {}}',
            "unclosed",
            "end it with ]",
        ),
        (MistralParser, '[TOOL_CALLS][{"arguments": {}}]', "missing_name", '"name"'),
        (
            MistralParser,
            '[TOOL_CALLS][{"name": "f", "arguments": {]',
            "malformed_json",
            "JSON",
        ),
        (MistralParser, "[TOOL_CALLS]f[ARGS][1]", "bad_arguments", "an object"),
        (MistralParser, "[TOOL_CALLS]f[ARGS]{", "malformed_json", "JSON"),
        (PythonicParser, "[f(1)]", "malformed_json", "by name"),
        (PythonicParser, "[f(**x)]", "malformed_json", "by name"),
        (PythonicParser, "[f(a=open('x'))]", "malformed_json", "a must be a literal"),
        (PythonicParser, "[f(a={1, 2})]", "malformed_json", "a must be a literal"),
        (PythonicParser, "[f(a=1e999)]", "malformed_json", "a must be a literal"),
        (PythonicParser, "[f(a={**b})]", "malformed_json", "a must be a literal"),
        (PythonicParser, r"[f(a='\ud800')]", "malformed_json", "without its other half"),
        (
            PythonicParser,
            "[f(a=1, a=2)]",
            "malformed_json",
            "the argument 'a' is given twice",
        ),
        (
            PythonicParser,
            "[f(a={'b': 1, 'b': 2})]",
            "malformed_json",
            "the key 'b' is given twice",
        ),
        (PythonicParser, "[f(a={1: 2, '1': 3})]", "malformed_json", "in double quotes"),
        (PythonicParser, "[f(a=", "unclosed", "is not closed"),
        (PythonicParser, "[f(a='x)]", "unclosed", "is not closed"),
        (
            PythonicParser,
            "<|python_start|>f(a=1)<|python_end|>",
            "unclosed",
            "is not closed",
        ),
        (
            PythonicParser,
            "[f(a" + "=[" * 100 + "]" * 100 + ")]",
            "unclosed",
            "is not closed",
        ),
        (PythonicParser, f"[f(a='{'x' * 20_000}')]", "bad_arguments", "16384 characters"),
        (FenceParser, "```python\nprint(1)", "unclosed", "a line of ```"),
        (FenceParser, "```pair\n1\n```", "bad_arguments", "needs ['x', 'y']"),
    ],
)
def test_a_slip_is_a_problem_that_says_what_to_write(
    parser: Callable[[], ToolCallParser], text: str, kind: str, detail: str
) -> None:
    parsed = parser().parse(text, (PYTHON, SHELL, PAIR))
    (found,) = parsed.problems

    assert (found.kind, detail in found.detail) == (kind, True), found.detail
    assert found.raw.strip() in str(parsed.message["content"])


def test_the_call_behind_a_slip_is_read() -> None:
    broken = coder("f", a="1").replace("</parameter>", "")
    assert [
        call.name for call in QwenCoderParser().parse(broken + coder("g")).tool_calls
    ] == ["g"]
    marked = "[TOOL_CALLS][{[TOOL_CALLS]g[ARGS]{}"
    assert [call.name for call in MistralParser().parse(marked).tool_calls] == ["g"]
    assert [call.name for call in PythonicParser().parse("[f(a=\n[g()]").tool_calls] == [
        "g"
    ]


def test_a_value_may_hold_what_closes_a_call_and_keeps_its_lines() -> None:
    code = "\nif x:\n    y = '</tool_call>'  # </function>\n"
    (call,) = QwenCoderParser().parse(coder("f", code=code)).tool_calls
    assert call.arguments == {"code": code}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "boolean"}, "True", True),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "None", None),
        ({"type": "string"}, "True", "True"),
        ({}, "True", "True"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "null"]}, '"quoted"', '"quoted"'),
        ({"type": "number"}, "12", 12),
    ],
)
def test_a_value_is_of_a_type_that_its_schema_admits(
    schema: dict[str, object], written: str, value: object
) -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": {"x": schema}})
    (call,) = QwenCoderParser().parse(coder("f", x=written), (tool,)).tool_calls
    assert call.arguments == {"x": value}
    assert type(call.arguments["x"]) is type(value)


def test_values_are_what_the_schema_says() -> None:
    (call,) = QwenCoderParser().parse(coder("add", a="12", b="12"), (TOOL,)).tool_calls
    assert call.arguments == {"a": 12, "b": "12"}


@pytest.mark.parametrize(
    ("language", "name", "argument"),
    [("python", "python", "code"), ("py", "python", "code"), ("Bash", "shell", "command")],
)
def test_a_block_of_code_is_a_call(language: str, name: str, argument: str) -> None:
    text = f"First:\n```{language}\nx = 1\n\nprint(x)\n```\nThen:\n```json\n{{}}\n```"
    parsed = FenceParser().parse(text, (PYTHON, SHELL))

    assert parsed.tool_calls == (ToolCall("call_0", name, {argument: "x = 1\n\nprint(x)"}),)
    assert parsed.message["content"] == "First:\n\nThen:\n```json\n{}\n```"


def test_a_block_of_a_language_without_a_tool_is_content() -> None:
    text = "```bash\nls\n```"
    assert FenceParser().parse(text, (PYTHON,)).tool_calls == ()
    assert FenceParser().parse(text, (PYTHON,)).message["content"] == text


def test_the_text_of_a_call_and_of_a_problem_is_found_by_its_span() -> None:
    thought = '<think><tool_call>{"name": "f"}</tool_call></think>\n'
    call, slip = '<tool_call>{"name": "f"}</tool_call>', "<tool_call>{</tool_call>"
    parsed = HermesParser().parse(f"{thought}One {call} two {slip} {call}")

    spans = [parsed.spans[name] for name in ("call_0", "call_1", "call_2")]
    text = f"{thought}One {call} two {slip} {call}"
    assert [text[begin:end] for begin, end in spans] == [call, slip, call]
    assert spans[0][0] == len(thought) + 4


PIECES = [
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>",
    "[TOOL_CALLS]", "[ARGS]", "[", "]", "f(", "a=1", ")", "{", "}", '"', "'", ",", "\n", "```",
    "```python\n", "<|python_start|>", "<|python_end|>", "<think>", "</think>", '{"name": "f"}',
    "<arg_key>", "</arg_value>", "word ", "<|message|>", " to=f", "<｜tool▁call▁begin｜>",
]  # fmt: skip


@pytest.mark.parametrize("name", BUILT_IN)
@given(st.lists(st.sampled_from(PIECES), max_size=24))
def test_whatever_is_written_is_a_call_a_problem_or_content(
    name: str, pieces: list[str]
) -> None:
    text = "".join(pieces)
    parsed = BUILT_IN[name]().parse(text, (PYTHON,))

    ids = [found.id for found in (*parsed.tool_calls, *parsed.problems)]
    assert sorted(ids) == sorted(f"call_{number}" for number in range(len(ids)))
    for problem in parsed.problems:
        begin, end = parsed.spans[problem.id]
        assert text[begin:end] == problem.raw
    ordered = [parsed.spans[f"call_{number}"] for number in range(len(ids))]
    assert all(one[1] <= other[0] for one, other in pairwise(ordered))
