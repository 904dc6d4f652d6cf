"""Turns: an assistant's messages for the demonstrations of two examples."""

from __future__ import annotations

import json
from typing import Any

from agentrl.tools.parsers.hermes import HermesParser
from agentrl.types import Message, ToolCall

_PARSER = HermesParser()


def say(text: str) -> Message:
    """An answer."""
    return {"role": "assistant", "content": text}


def call(name: str, output: str, /, **arguments: Any) -> list[Message]:
    """A tool call, and the tool's answer to it."""
    made = ToolCall("call_0", name, arguments).openai()
    return [
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "content": output},
    ]


def broken_call(name: str, /, **arguments: Any) -> list[Message]:
    """A call whose last brace is missing, and what the executor answers to that."""
    written = json.dumps({"name": name, "arguments": arguments})[:-1]
    parsed = _PARSER.parse(f"<tool_call>\n{written}\n</tool_call>")
    return [
        parsed.message,
        {"role": "tool", "content": f"Error: {parsed.problems[0].detail}"},
    ]
