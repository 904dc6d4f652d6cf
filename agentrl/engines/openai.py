"""OpenAI engine: any OpenAI-compatible server as an engine of messages; never trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.engines.checks import chosen, require_new
from agentrl.errors import EngineError
from agentrl.llm import ChatAnswer, ChatClient, ChatServerSpec, wire_reasoning
from agentrl.tools.parsers.reading import CallReading, kind_of, named_call
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    Message,
    ParsedMessage,
    SamplingParams,
    TokenUsage,
)


class OpenAIEngine:
    """``RolloutEngine`` that takes ``GenerateRequest.messages`` and gives a message: no ids, no
    logprobs, no versions.

    Args:
        server: that answers.

    Raises:
        ConfigError: the variable named for the key is not set.
    """

    def __init__(self, server: ChatServerSpec) -> None:
        self.client = ChatClient(server)
        self._asked: dict[str, asyncio.Task[ChatAnswer]] = {}

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``; the counts are the server's own.

        Raises:
            EngineError: the request asks for what only an engine of ids does, or spent its
                deadline.
            ServerError: the server refused the request, or its infrastructure failed for good.
        """
        _check(request)
        require_new(request, self._asked)
        asking = asyncio.ensure_future(
            self.client.chat(
                _answerable(request.messages),
                tools=request.tools,
                max_tokens=request.sampling.max_new_tokens,
                temperature=request.sampling.temperature,
                settings=_settings(request.sampling),
            )
        )
        self._asked[request.request_id] = asking
        try:
            # ``wait`` cancels nothing, so that an abort, which does, is told from a spent deadline.
            await asyncio.wait([asking], timeout=request.deadline_s)
            if not asking.done():
                raise EngineError(
                    f"request {request.request_id!r} spent its deadline_s={request.deadline_s} "
                    f"without an answer of model {self.client.spec.model!r} at "
                    f"{self.client.spec.base_url}; raise it, or ask for less"
                )
            if asking.cancelled():
                return Completion(
                    request.request_id, (), "abort", TokenUsage(0, 0), text=""
                )
            return _completion(request, asking.result())
        finally:
            # Who awaits this may have been cancelled; the server must not go on for nobody.
            asking.cancel()
            del self._asked[request.request_id]

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``."""
        for request_id in request_ids:
            if (asking := self._asked.get(request_id)) is not None:
                # An abort may come from another event loop than the one that asks.
                asking.get_loop().call_soon_threadsafe(asking.cancel)

    async def release(self, session_id: str) -> None:
        """Nothing is kept for an episode."""

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``; neither vocabulary nor context is known."""
        return EngineInfo(
            "openai", self.client.spec.model, 0, 0, 0, returns_ids=False, grammars=True
        )

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        await self.client.close()


def _check(request: GenerateRequest) -> None:
    """What such a server cannot do is not left out in silence."""
    problem = ""
    if not request.messages:
        rule = "messages must be the conversation, and there are none"
        problem = f"{rule}; this engine takes no token ids"
    elif request.sampling.stop_token_ids:
        got = request.sampling.stop_token_ids
        problem = f"stop_token_ids must be empty, got {got}; use stop strings"
    elif request.min_version:
        problem = (
            f"min_version must be 0, got {request.min_version}; the server's weights have no "
            "versions"
        )
    if problem:
        raise EngineError(
            f"request {request.request_id!r} to engine 'openai': {problem}", retryable=False
        )


def _settings(sampling: SamplingParams) -> Mapping[str, Any]:
    """What differs from a server's defaults; ``top_k`` and ``min_p`` are extensions that not every
    server has.
    """
    settings = chosen(sampling, "top_p", "top_k", "min_p", "stop")
    if sampling.json_schema:
        named = {"name": "answer", "schema": json.loads(sampling.json_schema)}
        settings["response_format"] = {"type": "json_schema", "json_schema": named}
    return settings


def _answerable(messages: Sequence[Message]) -> list[Message]:
    """The conversation as a server accepts it: a result whose call could not be read becomes a
    user's message.
    """
    known: set[str] = set()
    answerable: list[Message] = []
    for message in messages:
        known |= {call["id"] for call in message.get("tool_calls", [])}
        if message["role"] == "tool" and message.get("tool_call_id") not in known:
            message = {"role": "user", "content": message["content"]}
        answerable.append(message)
    return answerable


def _completion(request: GenerateRequest, answer: ChatAnswer) -> Completion:
    parsed = _parsed(answer.message)
    return Completion(
        request_id=request.request_id,
        segments=(),
        finish_reason="length" if answer.finish_reason == "length" else "stop",
        usage=TokenUsage(answer.usage.prompt_tokens, answer.usage.completion_tokens),
        text=str(parsed.message["content"]),
        parsed=parsed,
        cached_tokens=answer.usage.cached_tokens,
        timings={"request_s": answer.seconds},
    )


def _parsed(wire: Mapping[str, Any]) -> ParsedMessage:
    """The server's message; a call whose arguments are no JSON object is a problem and stays in the
    content.
    """
    reading = CallReading()
    if isinstance(wire.get("content"), str):
        reading.content.append(wire["content"])
    for entry in wire.get("tool_calls") or ():
        function = entry.get("function") if isinstance(entry, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            detail = (
                f'the call needs "name", the tool\'s name as a string; got {kind_of(name)}'
            )
            reading.problem("missing_name", detail, str(entry))
        else:
            arguments = function.get("arguments") or {}
            call = partial(named_call, name, arguments, f'the arguments of "{name}"')
            reading.add(f"{name}({arguments})", call)
    return reading.message(wire_reasoning(wire) or None)
