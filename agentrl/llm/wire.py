"""Chat wire format: messages and tools in the shape of OpenAI's chat completions API.

https://platform.openai.com/docs/api-reference/chat

There a call's arguments are JSON text, here they are a mapping; there an image is a URL, here an
``Image``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from agentrl.errors import DataError
from agentrl.guards.parsing import parse_json
from agentrl.types import Image, Message, ToolSpec, with_images
from agentrl.types.messages import message_faults
from agentrl.types.user_code.values import shown

CONTEXT_EXCEEDED = "context_length_exceeded"
"""The error's name where a conversation is too long for the model."""

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


# No error by name: it is what a message has, not what a program does.
class WireFault(ValueError):  # noqa: N818
    """Why something that came over the wire is no message or tool: where, the rule, and the value
    found.
    """


def to_wire(message: Message, *, reasoning: bool = False) -> dict[str, Any]:
    """A message as a server takes it; arguments become JSON text, images ``data:`` URIs, an empty
    content beside calls becomes null.

    Args:
        message: as agentrl keeps it.
        reasoning: keep ``reasoning_content``, which some servers refuse to be sent back.

    Raises:
        DataError: the bytes of an image are not at hand.
    """
    wire: dict[str, Any] = {**message}
    if isinstance(message["content"], list):
        wire["content"] = [
            {"type": "image_url", "image_url": {"url": image.data_uri()}}
            if isinstance(image := part.get("image"), Image)
            else dict(part)
            for part in message["content"]
        ]
    if not reasoning:
        wire.pop("reasoning_content", None)
    if message.get("tool_calls"):
        wire["tool_calls"] = [_call_to_wire(call) for call in message["tool_calls"]]
        wire["content"] = message["content"] or None
    return wire


def from_wire(value: Any, where: str) -> Message:
    """A message from a client, in the shape of ``agentrl.types.Message``; nulls and unknown keys
    are left out.

    Args:
        value: as it came.
        where: its place in the request, for the error.

    Raises:
        WireFault: it is no message; the rule and the value found.
    """
    if not isinstance(value, Mapping):
        raise WireFault(f"{where} must be an object with a role, got {shown(value)}")
    role = _ROLES.get(str(value.get("role")))
    if role is None:
        raise WireFault(
            f"{where}.role must be one of {', '.join(_ROLES)}, got {value.get('role')!r}"
        )
    calls = value.get("tool_calls")
    content = _content(value.get("content"), where, role)
    message: Message = {"role": role, "content": content}  # type: ignore[typeddict-item]
    if value.get("function_call") is not None:
        raise WireFault(f"{where}.function_call is not supported; write it as tool_calls")
    if role == "assistant" and calls:
        message["tool_calls"] = _calls_from_wire(calls, f"{where}.tool_calls")
    if role == "tool":
        if not isinstance(value.get("tool_call_id"), str):
            raise WireFault(
                f"{where}.tool_call_id must name the call that it answers, got "
                f"{value.get('tool_call_id')!r}"
            )
        message["tool_call_id"] = value["tool_call_id"]
    reasoning = wire_reasoning(value)
    if role == "assistant" and reasoning is not None:
        message["reasoning_content"] = reasoning
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    return message


def wire_reasoning(value: Mapping[str, Any]) -> str | None:
    """The thoughts of a message, under either of the keys that servers use; None without any."""
    keys = ("reasoning_content", "reasoning")
    texts = [text for key in keys if isinstance(text := value.get(key), str)]
    return max(texts, key=bool, default=None)


def stored_message(value: Mapping[str, Any], where: str) -> Message:
    """A message of a data set, as agentrl has it or as OpenAI's files do: arguments as JSON text, a
    null content of an assistant's, the role ``developer``. What else it holds is kept, but for
    nulls.

    Args:
        value: with a role.
        where: its place in the data set, for the error.

    Raises:
        DataError: another role, a content that is none, a call without a name, or arguments that
            are no JSON object.
    """
    # Arrow has every column
    message: dict[str, Any] = {name: own for name, own in value.items() if own is not None}
    message["role"] = _ROLES.get(str(value["role"]), value["role"])
    if message["role"] == "assistant":
        message.setdefault("content", "")
    try:
        calls = _calls_from_wire(message.pop("tool_calls", ()), "tool_calls")
        if calls:
            message["tool_calls"] = calls
    except WireFault as fault:
        raise DataError(f"{where}: {fault}") from None
    rule = next(message_faults(message), None)
    if rule is not None:
        raise DataError(
            f"{where} {rule}, got {shown(value)}; correct it, or leave the row out"
        )
    return cast(Message, message)


def tool_from_wire(value: Any, where: str) -> ToolSpec:
    """A tool from a client.

    Raises:
        WireFault: it is no function tool.
    """
    match value:
        case {"type": "function", "function": {"name": str(name), **function}}:
            parameters = function.get("parameters", {"type": "object", "properties": {}})
            if isinstance(parameters, Mapping):
                return ToolSpec(
                    name, str(function.get("description") or ""), dict(parameters)
                )
            raise WireFault(
                f"{where}.function.parameters must be a JSON Schema object, got {shown(parameters)}"
            )
    raise WireFault(
        f'{where} must be {{"type": "function", "function": {{"name": ...}}}}, got {shown(value)}'
    )


def _call_to_wire(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _calls_from_wire(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise WireFault(f"{where} must be a list, got {shown(calls)}")
    return [
        _call_from_wire(call, f"{where}[{number}]") for number, call in enumerate(calls)
    ]


def _call_from_wire(value: Any, where: str) -> dict[str, Any]:
    match value:
        case {"function": {"name": str(name), **function}}:
            arguments = function.get("arguments") or {}
        case _:
            raise WireFault(
                f"{where} must be a function call with a name, got {shown(value)}"
            )
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments, finite=True)
        except ValueError as error:
            raise WireFault(
                f"{where}.function.arguments must be JSON text, got {shown(arguments)} ({error})"
            ) from None
    if not isinstance(arguments, Mapping):
        raise WireFault(
            f"{where}.function.arguments must be a JSON object, got {shown(arguments)}"
        )
    call = {"name": name, "arguments": dict(arguments)}
    return {"id": str(value.get("id") or ""), "type": "function", "function": call}


def _content(value: Any, where: str, role: str) -> Any:
    """Text as it is, parts that are all text as one text, other parts with their images read."""
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return ""
    if not isinstance(value, list):
        raise WireFault(
            f"{where}.content must be text or a list of parts, got {shown(value)}"
        )
    try:
        parts = [
            _part_from_wire(part, f"{where}.content[{number}]")
            for number, part in enumerate(value)
        ]
        (message,) = with_images(({"role": role, "content": parts},))  # type: ignore[typeddict-item]
    except DataError as error:
        raise WireFault(f"{where}.content: {error}") from None
    return message["content"]


def _part_from_wire(part: Any, where: str) -> dict[str, Any]:
    """A part with nothing in it but what was looked at: a client must not name a file of this
    machine.
    """
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url"}:
            source = part.get("image_url")
            url = source.get("url") if isinstance(source, Mapping) else source
            if isinstance(url, str) and url.startswith("data:"):
                return {"type": "image", "image": url}
            raise WireFault(
                f"{where}.image_url.url must be a data: URI, as nothing is fetched, got "
                f"{shown(url)}"
            )
    raise WireFault(f"{where} must be a part of type text or image_url, got {shown(part)}")
