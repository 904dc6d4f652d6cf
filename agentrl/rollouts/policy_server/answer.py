"""A turn as the answer to a chat completion: whole, or as server-sent events.

An engine gives a completion when it is finished, so the events of a stream come together, when the turn is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrl.llm import to_wire
from agentrl.rollouts.policy_server.request import ChatRequest
from agentrl.rollouts.turns import MadeTurn

__all__ = ["completion_body", "completion_events"]


def completion_body(made: MadeTurn, request: ChatRequest, *, completion_id: str, created: int) -> dict[str, Any]:
    """The ``chat.completion`` object.

    Args:
        made: the turn.
        request: what it answers.
        completion_id: unique among the answers.
        created: seconds since the epoch.
    """
    message = to_wire(made.action.message, reasoning=True)
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(made)}],
        "usage": _usage(made),
    }


def completion_events(made: MadeTurn, request: ChatRequest, *, completion_id: str, created: int) -> Iterator[str]:
    """The same as ``chat.completion.chunk`` events, ``[DONE]`` last."""
    message = to_wire(made.action.message, reasoning=True)
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", []))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.get("reasoning_content"):
        deltas.append({"reasoning_content": message["reasoning_content"]})
    if message["content"]:
        deltas.append({"content": message["content"]})
    deltas += [{"tool_calls": [call]} for call in calls]
    choices: list[dict[str, Any]]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish_reason(made)})
    head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": request.model}
    chunks: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in choices]
    if request.stream_usage:
        chunks.append({**head, "choices": [], "usage": _usage(made)})
    for chunk in chunks:
        yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def _finish_reason(made: MadeTurn) -> str:
    return "tool_calls" if made.action.tool_calls else made.action.finish_reason


def _usage(made: MadeTurn) -> dict[str, Any]:
    account = made.completion.account
    return {
        "prompt_tokens": account.prompt_tokens,
        "completion_tokens": account.completion_tokens,
        "total_tokens": account.prompt_tokens + account.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": made.completion.cached_tokens},
    }
