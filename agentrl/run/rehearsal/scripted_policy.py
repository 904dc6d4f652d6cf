"""Scripted policy: a ``RolloutEngine`` of messages that says given turns, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    Message,
    ParsedMessage,
    TokenUsage,
    ToolCall,
)

UNKNOWN_TOOL = ToolCall("call_0", "no_such_tool_agentrl_check", {"x": 1})


class MessagePolicy:
    """What a ``RolloutEngine`` of messages that needs no server has beside ``generate``."""

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing runs elsewhere."""

    async def release(self, session_id: str) -> None:
        """Nothing is kept for an episode."""

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``."""
        return EngineInfo("scripted", "scripted", 0, 0, 0, returns_ids=False)


class ScriptedPolicy(MessagePolicy):
    """Calls a tool that does not exist where asked to, then says its turns in order, the last one
    again and again.

    Args:
        turns: what it says: a text, or texts and assistant's messages with calls.
        calls: whether it first calls a tool that does not exist, where tools are on offer.
    """

    def __init__(self, turns: str | Sequence[str | Message], *, calls: bool = False) -> None:
        script = [turns] if isinstance(turns, str) else turns
        self._turns: list[Message] = [
            {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
            for turn in script
        ]
        self._calls = calls
        self._said = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        if self._calls and request.tools:
            self._calls = False
            message: Message = {
                "role": "assistant",
                "content": "",
                "tool_calls": [UNKNOWN_TOOL.openai()],
            }
        else:
            message = self._turns[min(self._said, len(self._turns) - 1)]
            self._said += 1
        return completion_of(request, message)


def completion_of(request: GenerateRequest, message: Message) -> Completion:
    """The completion of an engine that says ``message``."""
    content: Any = message["content"]
    text = content if isinstance(content, str) else ""
    calls = [
        ToolCall(f"call_{number}", call["function"]["name"], call["function"]["arguments"])
        for number, call in enumerate(message.get("tool_calls", ()))
    ]
    said: Message = {"role": "assistant", "content": content}
    if calls:
        said["tool_calls"] = [call.openai() for call in calls]
    return Completion(
        request_id=request.request_id,
        segments=(),
        finish_reason="stop",
        usage=TokenUsage(0, 0),
        text=text,
        parsed=ParsedMessage(said, tuple(calls), ()),
    )
