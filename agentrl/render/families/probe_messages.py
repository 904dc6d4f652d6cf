"""Probe messages: short conversations that reveal a chat template's behaviour."""

from __future__ import annotations

from agentrl.types import Message, ToolCall, ToolSpec

WORD = "thereupon"
"""A word that no template contains."""

TOOL = ToolSpec(
    "lookup",
    "Looks a word up: é, <b>.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": []},
)
QUESTION: Message = {"role": "user", "content": "Hello"}
ANSWER: Message = {"role": "assistant", "content": f"It is {WORD}"}
THOUGHT: Message = {
    "role": "assistant",
    "content": f"It is {WORD}",
    "reasoning_content": "Hm",
}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [ToolCall("call_0", TOOL.name, {"word": WORD}).openai()],
}
RESULT: Message = {
    "role": "tool",
    "content": "Found",
    "tool_call_id": "call_0",
    "name": TOOL.name,
}
