"""Message check: validates the parts of a message that a renderer writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import DataError
from agentrl.types import Message


def text_content(message: Message) -> str:
    """The content of a message of text alone.

    Raises:
        DataError: it is no text.
    """
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise DataError(
            f"the content of a {message['role']} message must be text here, got "
            f"{type(content).__name__}; parts of text and images are for users and tools, and go "
            "through agentrl.types.with_images first"
        )
    return content


def call_arguments(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call.

    Raises:
        DataError: they are no mapping.
    """
    arguments = function["arguments"]
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"a tool call's arguments must be a mapping, got {type(arguments).__name__} for "
            f"{function['name']!r}; parse them with json.loads before they become a message"
        )
    return arguments
