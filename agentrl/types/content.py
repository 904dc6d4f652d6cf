"""Content: a message's content as text, or as parts of text and images.

- Parts are ``{"type": "text", "text": ...}`` and ``{"type": "image", "image": ...}``.
- An image may be given in many forms (``Image.read``), and in OpenAI's shape, ``{"type":
  "image_url", "image_url": {"url": ...}}``.
- ``with_images`` converts each to an ``Image``; renderer, engine and store see nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.types.image import Image
from agentrl.types.messages import Message


def with_images(
    messages: Iterable[Message], named: Mapping[str, object] | None = None
) -> tuple[Message, ...]:
    """The messages with each content as text, or as parts whose images are ``Image`` objects.

    Args:
        messages: from an environment, a tool or a data set.
        named: images by the names that parts may use, ``{"type": "image", "image": NAME}``.

    Raises:
        DataError: a part of another type, an image that cannot be read, or one in an assistant's
            message.
    """
    return tuple(
        message
        if isinstance(content := message.get("content"), str | None)
        else _read_parts(message, content, named or {})
        for message in messages
    )


def images_in(messages: Iterable[Message]) -> Iterator[Image]:
    """The images of messages that ``with_images`` returned, in their order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            if isinstance(part, Mapping) and isinstance(image := part.get("image"), Image):
                yield image


def content_text(content: object) -> str:
    """A content for a human reader: its text, with each image as one word in brackets."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(map(_part_text, content)) if isinstance(content, list | tuple) else str(content)


def _part_text(part: object) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("image"), Image):
        return f"[{part['image']}]"
    return str(part["text"]) if isinstance(part, Mapping) and "text" in part else str(part)


def _read_parts(message: Message, content: Any, named: Mapping[str, object]) -> Message:
    role = message["role"]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise DataError(
            f"the content of a {role} message must be text or a list of parts, got "
            f"{type(content).__name__}"
        )
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        where = f"part {number} of a {role} message"
        read = _read_part(part, where, named)
        if "image" in read and role == "assistant":
            raise DataError(
                f"{where} is an image, and what an assistant writes is text; give it to the "
                f"user's turn"
            )
        if parts and "text" in read and "text" in parts[-1]:
            read = {"type": "text", "text": parts.pop()["text"] + read["text"]}
        parts.append(read)
    if all("text" in part for part in parts):
        return {**message, "content": parts[0]["text"] if parts else ""}
    return {**message, "content": parts}


def _read_part(part: object, where: str, named: Mapping[str, object]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image" | "image_url", **forms}:
            names = ("image", "image_url", "url", "path")
            given = next((forms[name] for name in names if forms.get(name)), None)
            if isinstance(given, str) and given in named:
                given = named[given]
            return {"type": "image", "image": Image.read(given, where)}
        case Mapping():
            found = f"type {part.get('type')!r}"
        case _:
            found = type(part).__name__
    raise DataError(
        f'{where} must be {{"type": "text", "text": ...}} or {{"type": "image", "image": ...}}, '
        f"got {found}; other kinds are not supported"
    )
