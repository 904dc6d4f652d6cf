"""Message policies: engines of messages that need no server, such as one that says given turns."""

from __future__ import annotations

from collections.abc import Sequence

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
    """A ``RolloutEngine`` whose turns ``say`` gives."""

    async def say(self, request: GenerateRequest) -> tuple[str, ParsedMessage]:
        """The next turn: its text, and what a parser makes of it."""
        raise NotImplementedError

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        text, parsed = await self.say(request)
        usage = TokenUsage(0, 0)
        return Completion(request.request_id, (), "stop", usage, text=text, parsed=parsed)

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

    def __init__(
        self, turns: str | Sequence[str | Message], *, calls: bool = False
    ) -> None:
        script = [turns] if isinstance(turns, str) else turns
        self._turns: list[Message] = [
            {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
            for turn in script
        ]
        self._calls = calls
        self._said = 0

    async def say(self, request: GenerateRequest) -> tuple[str, ParsedMessage]:
        """See ``MessagePolicy.say``."""
        if self._calls and request.tools:
            self._calls = False
            calls: tuple[ToolCall, ...] = (UNKNOWN_TOOL,)
            content = ""
        else:
            message = self._turns[min(self._said, len(self._turns) - 1)]
            self._said += 1
            content = message["content"]
            calls = tuple(
                ToolCall(
                    f"call_{number}",
                    call["function"]["name"],
                    call["function"]["arguments"],
                )
                for number, call in enumerate(message.get("tool_calls", ()))
            )
        said: Message = {"role": "assistant", "content": content}
        if calls:
            said["tool_calls"] = [call.openai() for call in calls]
        return content if isinstance(content, str) else "", ParsedMessage(said, calls, ())
