"""Content blocks: messages and tools in the shape of Anthropic's Messages API.

https://docs.anthropic.com/en/api/messages

There thoughts and calls are blocks of the assistant's message, a tool's result is a block of the
user's, and the system's words may stand beside the conversation; here all are as in chat
completions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.llm.wire import WireFault, from_wire, to_wire, tool_from_wire
from agentrl.types import Message, ToolSpec


def from_blocks(system: Any, messages: Sequence[Any]) -> list[Message]:
    """The conversation of a request.

    Args:
        system: what the request has beside its messages: text, blocks, or nothing.
        messages: the request's messages. Those of the assistant that follow one another are one.

    Raises:
        WireFault: a message that is none of text, images, thoughts and calls.
    """
    wires: list[tuple[dict[str, Any], str]] = []
    if system:
        wires.append(({"role": "system", "content": _content(system, "system")}, "system"))
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant", "system"):
            raise WireFault(
                f"{place}.role must be user, assistant or system, got {role!r}; a tool's result is "
                "a tool_result block of the user here"
            )
        content = message.get("content")
        if role == "system":
            wires.append(({"role": role, "content": _content(content, place)}, place))
        elif role == "user":
            wires += [(wire, place) for wire in _of_user(_blocks(content, place), place)]
        else:
            if not wires or wires[-1][0]["role"] != "assistant":
                wires.append(({"role": "assistant", "content": ""}, place))
            _add_to_turn(wires[-1][0], _blocks(content, place), place)
    return [from_wire(wire, place) for wire, place in wires]


def _blocks(content: Any, place: str) -> list[Any]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(
        isinstance(block, Mapping) for block in blocks
    ):
        raise WireFault(f"{place}.content must be text or a list of blocks")
    return blocks


def _of_user(blocks: Sequence[Mapping[str, Any]], place: str) -> Iterator[dict[str, Any]]:
    """The results among blocks, each as a message, and what the user says between them."""
    said: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        if block.get("type") != "tool_result":
            said.append(_part(block, where))
            continue
        if said:
            yield {"role": "user", "content": said}
            said = []
        content = _content(block.get("content") or "", where)
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    if said or not blocks:
        yield {"role": "user", "content": said}


def _add_to_turn(
    turn: dict[str, Any], blocks: Sequence[Mapping[str, Any]], place: str
) -> None:
    """Puts the blocks of a message into the assistant's turn."""
    for number, block in enumerate(blocks):
        match block:
            case {"type": "text", "text": str(text)}:
                turn["content"] += text
            case {"type": "thinking", "thinking": str(text)}:
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
            case {"type": "tool_use"}:
                function = {"name": block.get("name"), "arguments": block.get("input")}
                call = {"id": block.get("id"), "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
            # the thoughts of another model, which nobody here can read
            case {"type": "redacted_thinking"}:
                pass
            case _:
                raise WireFault(
                    f"{place}.content[{number}] of the assistant must be a block of type text, "
                    f"thinking or tool_use, got {block.get('type')!r}"
                )


def _content(value: Any, place: str) -> Any:
    """Text, or parts in the shape of chat completions."""
    if isinstance(value, str):
        return value
    return [_part(block, f"{place}[{n}]") for n, block in enumerate(_blocks(value, place))]


def _part(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    match block:
        case {"type": "text"}:
            return {"type": "text", "text": block.get("text")}
        case {
            "type": "image",
            "source": {"type": "base64", "media_type": kind, "data": data},
        }:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "tool_reference", "tool_name": str(name)}:
            return {"type": "text", "text": name}
    raise WireFault(
        f"{place} must be a block of type text, or image with a source of type base64, as nothing "
        f"is fetched, got type {block.get('type')!r}"
    )


def tool_from_block(value: Any, where: str) -> ToolSpec:
    """A tool from a client.

    Raises:
        WireFault: it is none that the agent runs and describes itself.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    match value:
        case {"name": str(name), "input_schema": parameters} if kind in (None, "custom"):
            described = str(value.get("description") or "")
            function = {"name": name, "description": described, "parameters": parameters}
            return tool_from_wire({"type": "function", "function": function}, where)
    raise WireFault(
        f"{where} must be a tool with a name and an input_schema, which the agent runs itself, got "
        f"type {kind!r}; none is run here"
    )


def to_blocks(message: Message) -> list[dict[str, Any]]:
    """An assistant's message as blocks: thoughts, text, calls, each where there is one."""
    wire = to_wire(message, reasoning=True)
    blocks: list[dict[str, Any]] = []
    if reasoning := wire.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
    if wire["content"]:
        blocks.append({"type": "text", "text": wire["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        use = {"id": call["id"], "name": function["name"], "input": function["arguments"]}
        blocks.append({"type": "tool_use", **use})
    return blocks
