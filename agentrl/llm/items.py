"""Response items: messages and tools in the shape of OpenAI's Responses API.

https://platform.openai.com/docs/api-reference/responses

There an assistant's turn is several items (thoughts, text, a call each) and a tool's result is one;
here a turn is one message, as in chat completions, to which the items are put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.llm.wire import WireFault, from_wire, to_wire, tool_from_wire
from agentrl.types import Message, ToolSpec

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def from_items(items: Sequence[Any], where: str) -> list[Message]:
    """The conversation that items are.

    Args:
        items: a request's ``input``.
        where: its place in the request, for the error.

    Raises:
        WireFault: an item that is no part of a conversation of text, images and function calls.
    """
    wires: list[tuple[dict[str, Any], str]] = []
    for number, item in enumerate(items):
        place = f"{where}[{number}]"
        if not isinstance(item, Mapping):
            raise WireFault(f"{place} must be an item, got {type(item).__name__}")
        kind = item.get("type", "message")
        if kind == "function_call_output":
            wires.append((_result(item, place), place))
        elif kind == "message" and item.get("role") != "assistant":
            said = {
                "role": item.get("role"),
                "content": _content(item.get("content"), place),
            }
            wires.append((said, place))
        else:
            _add_to_turn(wires, kind, item, place)
    return [from_wire(wire, place) for wire, place in wires]


def _add_to_turn(
    wires: list[tuple[dict[str, Any], str]], kind: Any, item: Mapping[str, Any], place: str
) -> None:
    """Puts an item of the assistant into its turn: the last message, unless that has what can only
    come once.
    """
    turn = wires[-1][0] if wires and wires[-1][0]["role"] == "assistant" else None
    said = turn is not None and turn["content"] is not None
    if (
        turn is None
        or (kind == "message" and said)
        or (kind == "reasoning" and (said or len(turn) > 2))
    ):
        turn = {"role": "assistant", "content": None}
        wires.append((turn, place))
    if kind == "message":
        turn["content"] = _content(item.get("content"), place)
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        texts = [str(part.get("text", "")) for part in parts if isinstance(part, Mapping)]
        if texts:
            turn["reasoning_content"] = "\n".join(texts)
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    else:
        raise WireFault(
            f"{place} of type {kind!r} is not supported here; a conversation has message, "
            f"reasoning, function_call and function_call_output"
        )


def _result(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(item.get("call_id"), str):
        raise WireFault(
            f"{place}.call_id must name the call that it answers, got {item.get('call_id')!r}"
        )
    return {
        "role": "tool",
        "tool_call_id": item["call_id"],
        "content": _content(item.get("output"), place),
    }


def _content(value: Any, place: str) -> Any:
    """Text, or parts in the shape of chat completions."""
    if not isinstance(value, list):
        return value
    return [_part(part, f"{place}.content[{n}]") for n, part in enumerate(value)]


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        return {"type": "text", "text": part.get(_TEXTS[kind])}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    raise WireFault(
        f"{place} must be of type input_text, output_text or input_image, got {kind!r}"
    )


def tool_from_item(value: Any, where: str) -> ToolSpec:
    """A tool from a client.

    Raises:
        WireFault: it is no function tool: those that OpenAI runs itself are not here.
    """
    match value:
        case {"type": "function", **given}:
            function = {name: own for name, own in given.items() if own is not None}
            return tool_from_wire({"type": "function", "function": function}, where)
    kind = value.get("type") if isinstance(value, Mapping) else None
    raise WireFault(
        f"{where} must be a tool of type function, which the agent runs itself, got type "
        f"{kind!r}; none is run here"
    )


def to_items(message: Message, name: str) -> list[dict[str, Any]]:
    """An assistant's message as the items of a response: thoughts, text, calls, each where there is
    one.

    Args:
        message: as agentrl keeps it.
        name: of the response; the items' ids are made of it.
    """
    wire = to_wire(message, reasoning=True)
    items = []
    calls = wire.get("tool_calls", [])
    if reasoning := wire.get("reasoning_content"):
        items.append(reasoning_item(f"rs_{name}", reasoning))
    if wire["content"] or not calls:
        items.append(message_item(f"msg_{name}", wire["content"] or ""))
    return items + [call_item(f"fc_{name}_{n}", call) for n, call in enumerate(calls)]


def reasoning_item(item_id: str, text: str) -> dict[str, Any]:
    """The model's thoughts."""
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": "completed",
    }


def message_item(
    item_id: str, text: str, logprobs: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What it says."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text_part(text, logprobs)],
    }


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The part of a message that text is."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": list(logprobs),
    }


def call_item(item_id: str, call: Mapping[str, Any]) -> dict[str, Any]:
    """A call, from its entry in a message on the wire."""
    return {
        "id": item_id,
        "type": "function_call",
        "status": "completed",
        "call_id": call["id"],
        **call["function"],
    }
