"""The calls that real chat templates write are read alike by our parsers and SGLang's detectors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentrl.render import RendererSpec
from agentrl.tools import parser_for
from agentrl.types import Message, ToolCall, ToolSpec
from tests.kit.waiting import DEADLINE_S
from tests.render.family_kind import TEMPLATES, saved_any, saved_family

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

DETECTORS = {
    "deepseekv3": "deepseekv3",
    "glm4moe": "glm45",
    "gptoss": "gpt-oss",
    "lfm2_2_5": "lfm2",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "nemotron_3_nano": "qwen3_coder",
    "qwen2_5": "qwen25",
    "qwen3": "qwen25",
    "qwen3_5_think": "qwen3_coder",
    "qwen3_8": "qwen3_coder",
    "qwen3_instruct_2507": "hermes",
}
"""SGLang's detector of the calls that each of TRL's templates writes."""
ONE_A_TURN = {"gptoss", "llama3_1", "llama3_2"}
UNREAD_BY_SGLANG = {"gptoss"}
"""The template puts the recipient before the channel, and SGLang reads it behind the channel."""
UNREADABLE = {("lfm2_2_5", "signs")}
"""The template writes texts without escapes, so that one with a quote is no literal."""
TOOLS = (
    ToolSpec(
        "look_up",
        "Looks it up.",
        {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "times": {"type": "integer"},
                "share": {"type": "number"},
                "exact": {"type": "boolean"},
                "parts": {"type": "array", "items": {}},
                "where": {"type": "object"},
            },
        },
    ),
    ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}}),
)
WORD = ToolCall("call_0", "look_up", {"word": "tea"})
CASES: dict[str, tuple[str, tuple[ToolCall, ...]]] = {
    "one": ("", (WORD,)),
    "text before": ("I look it up.", (WORD,)),
    "unicode": ("", (ToolCall("call_0", "look_up", {"word": "naïve 日本語 🙂"}),)),
    "kinds": (
        "",
        (ToolCall("call_0", "look_up", {"times": -3, "share": 0.5, "exact": True}),),
    ),
    "digits as text": ("", (ToolCall("call_0", "look_up", {"word": "007"}),)),
    "signs": ("", (ToolCall("call_0", "look_up", {"word": 'say "a\\b" {now}\n[it\'s]'}),)),
    "nested": (
        "",
        (
            ToolCall(
                "call_0",
                "look_up",
                {"parts": [1, {"é": None}], "where": {"in": {"x": [True]}}},
            ),
        ),
    ),
    "no arguments": ("", (ToolCall("call_0", "now", {}),)),
    "parallel": ("", (WORD, ToolCall("call_1", "look_up", {"times": 2}))),
}


class Case(NamedTuple):
    """A completion as a template writes it, and how often it was read."""

    text: str
    written: list[tuple[str, Mapping[str, Any]]]
    ours: list[tuple[str, Mapping[str, Any]]]


def cases(template: str, folder: Path) -> dict[str, Case]:
    """All that a template can write, read by the parser that goes with it."""
    saved = (
        saved_family(template, folder)
        if template in TEMPLATES
        else saved_any(template, folder)
    )
    renderer = RendererSpec(str(saved)).build()
    parser = parser_for(renderer)
    found = {}
    for name, (content, calls) in CASES.items():
        if len(calls) > 1 and template in ONE_A_TURN:
            continue
        written = [call.openai() for call in calls]
        message: Message = {"role": "assistant", "content": content, "tool_calls": written}
        text = renderer.decode(renderer.target(message).token_ids)
        parsed = parser.parse(text, TOOLS)
        found[name] = Case(
            text,
            [(call.name, call.arguments) for call in calls],
            [(call.name, call.arguments) for call in parsed.tool_calls],
        )
    return found


@pytest.fixture(scope="module")
def read(
    python: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Any]:
    """By template and case: the completion, and the calls as SGLang reads them."""
    made = {
        (template, name): case
        for template in DETECTORS
        for name, case in cases(template, tmp_path_factory.mktemp(template)).items()
    }
    tools = [
        {
            "type": "function",
            "function": {
                "name": t.name,
                "description": t.description,
                "parameters": t.parameters,
            },
        }
        for t in TOOLS
    ]
    asked = [
        {"detector": DETECTORS[template], "text": case.text, "tools": tools}
        for (template, _), case in made.items()
    ]
    done = subprocess.run(
        [python, str(Path(__file__).with_name("sglang_calls.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return {
        key: (case, [(name, arguments) for name, arguments in theirs])
        for (key, case), theirs in zip(made.items(), answers, strict=True)
    }


@pytest.mark.parametrize("template", DETECTORS)
def test_calls_are_read_alike(read: dict[tuple[str, str], Any], template: str) -> None:
    own = {name: found for (key, name), found in read.items() if key == template}
    assert len(own) == len(CASES) - (template in ONE_A_TURN)
    for name, (case, theirs) in own.items():
        if (template, name) in UNREADABLE:
            assert case.ours == []
            continue
        assert case.ours == case.written, name
        assert theirs == ([] if template in UNREAD_BY_SGLANG else case.written), name
