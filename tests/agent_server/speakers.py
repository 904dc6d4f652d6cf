"""Speakers: an agent's side of a conversation, as a program of each dialect keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl.agent_server.api.chat_completions import CompletionAnswer
from agentrl.agent_server.api.dialect import Answer
from agentrl.agent_server.api.messages import MessageAnswer
from agentrl.agent_server.api.responses import ResponseAnswer


class Speaker:
    """A history in a dialect's shapes; what the agent says ends a request, what it hears goes into
    the next.
    """

    answer: ClassVar[type[Answer]]
    limit: ClassVar[str] = "max_tokens"

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def edit(self, number: int, text: str) -> None:
        """Gives one of what the user said another text."""
        own = [said for said in self.history if self._is_user(said)]
        own[number % len(own)]["content"] = text

    def results(self, given: Sequence[tuple[str, str]]) -> None:
        raise NotImplementedError

    def heard(self, body: Mapping[str, Any], *, thoughts: bool = True) -> list[str]:
        """Keeps the answer, with its thoughts or without; the ids of its calls."""
        raise NotImplementedError

    def body(self, tools: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The next request; ``tools`` are schemas by name."""
        body = {"model": "policy", **self._said(), **more}
        if tools:
            body["tools"] = [self._tool(name, schema) for name, schema in tools.items()]
        # as the wire carries it
        return json.loads(json.dumps(body))  # type: ignore[no-any-return]

    def _is_user(self, said: Mapping[str, Any]) -> bool:
        return said.get("role") == "user" and isinstance(said["content"], str)

    def _said(self) -> dict[str, Any]:
        raise NotImplementedError

    def _tool(self, name: str, schema: Any) -> dict[str, Any]:
        raise NotImplementedError


class ChatSpeaker(Speaker):
    """Chat completions."""

    answer = CompletionAnswer

    def results(self, given: Sequence[tuple[str, str]]) -> None:
        for call_id, text in given:
            self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def heard(self, body: Mapping[str, Any], *, thoughts: bool = True) -> list[str]:
        message = dict(body["choices"][0]["message"])
        if not thoughts:
            message.pop("reasoning_content", None)
        self.history.append(message)
        return [call["id"] for call in message.get("tool_calls", ())]

    def _said(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, *self.history]}

    def _tool(self, name: str, schema: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": schema}}


class ResponsesSpeaker(Speaker):
    """Responses, with all items in each request."""

    answer = ResponseAnswer
    limit = "max_output_tokens"

    def results(self, given: Sequence[tuple[str, str]]) -> None:
        for call_id, text in given:
            item = {"type": "function_call_output", "call_id": call_id, "output": text}
            self.history.append(item)

    def heard(self, body: Mapping[str, Any], *, thoughts: bool = True) -> list[str]:
        items = [item for item in body["output"] if thoughts or item["type"] != "reasoning"]
        self.history += items
        return [item["call_id"] for item in items if item["type"] == "function_call"]

    def _said(self) -> dict[str, Any]:
        said: dict[str, Any] = {"instructions": self.system} if self.system else {}
        return {**said, "input": self.history}

    def _tool(self, name: str, schema: Any) -> dict[str, Any]:
        return {"type": "function", "name": name, "parameters": schema}


class MessagesSpeaker(Speaker):
    """Messages, with results as blocks of the user's."""

    answer = MessageAnswer

    def results(self, given: Sequence[tuple[str, str]]) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id, text in given
        ]
        if blocks:
            self.history.append({"role": "user", "content": blocks})

    def heard(self, body: Mapping[str, Any], *, thoughts: bool = True) -> list[str]:
        blocks = [
            block for block in body["content"] if thoughts or block["type"] != "thinking"
        ]
        self.history.append({"role": "assistant", "content": blocks})
        return [block["id"] for block in blocks if block["type"] == "tool_use"]

    def _said(self) -> dict[str, Any]:
        said: dict[str, Any] = {"system": self.system} if self.system else {}
        return {**said, "messages": self.history, "max_tokens": 10_000}

    def _tool(self, name: str, schema: Any) -> dict[str, Any]:
        return {"name": name, "input_schema": schema}


SPEAKERS = (ChatSpeaker, ResponsesSpeaker, MessagesSpeaker)
