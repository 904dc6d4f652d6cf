"""Images of messages: those of a data set's rows, from files and a column that holds them apart,
and those of stored messages, whose bytes a run keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.store import RunDirectory
from agentrl.types import Image, Message
from agentrl.types.messages import IMAGE_PARTS

_PLACEHOLDER = "<image>"
"""Stands in a prompt's text for the next image of the row, as verl's data sets have it."""


def place_images(
    messages: Sequence[Mapping[str, Any]], images: Any, folder: Path, where: str
) -> list[dict[str, Any]]:
    """A row's messages with every image in its part. Files are named, and read where an episode
    begins.

    Args:
        messages: the row's; a part ``{"type": "image"}`` without an image takes the next of
            ``images``, and so does ``<image>`` in a text.
        images: the row's column of that name; None where it has none, and ``<image>`` is text.
        folder: what relative names of files start from.
        where: which row, for errors.

    Raises:
        DataError: ``images`` is no list, holds more or fewer images than there are parts for them,
            or one that cannot be read.
    """
    if images is not None and (
        not isinstance(images, Sequence) or isinstance(images, str | bytes)
    ):
        raise DataError(
            f"{where}: 'images' must be a list of images, got {type(images).__name__}"
        )
    given = list(() if images is None else images)
    rest = iter(given)
    placed = [dict(message) for message in messages]
    for message in placed:
        content = message.get("content")
        if images is not None and isinstance(content, str) and _PLACEHOLDER in content:
            content = _split(content)
        if isinstance(content, Sequence) and not isinstance(content, str | bytes):
            message["content"] = [_part(part, rest, folder, where) for part in content]
    if left := sum(1 for _ in rest):
        raise DataError(
            f"{where}: 'images' holds {len(given)} images, {left} more than the messages have "
            "parts for; write "
            '{"type": "image"}, or <image> in a text, where each belongs'
        )
    return placed


def place_row_images(row: Any, folder: Path, where: str) -> Any:
    """A conversation to imitate with the images of its column ``images`` in their parts.

    Args:
        row: of the data set; what is no conversation, or holds no image, is given back.
        folder, where: as for ``place_images``.

    Raises:
        DataError: as for ``place_images``.
    """
    messages = row.get("messages") if isinstance(row, Mapping) else row
    if not isinstance(messages, list | tuple) or not all(
        isinstance(m, Mapping) for m in messages
    ):
        return row
    images = row.get("images") if isinstance(row, Mapping) else None
    if images is None and all(isinstance(m.get("content"), str | None) for m in messages):
        return row
    placed = place_images(messages, images, folder, where)
    return {**row, "messages": placed} if isinstance(row, Mapping) else placed


def with_stored_images(messages: Iterable[Message], run: RunDirectory) -> list[Message]:
    """Messages that were stored, each image with its bytes.

    Raises:
        StoreError: the run has not the bytes of an image.
    """
    return [_with_stored_images(message, run) for message in messages]


def _with_stored_images(message: Message, run: RunDirectory) -> Message:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    return {**message, "content": [_stored_part(part, run) for part in content]}


def _stored_part(part: Any, run: RunDirectory) -> Any:
    image = part.get("image") if isinstance(part, Mapping) else None
    if not isinstance(image, Image):
        return part
    return {**part, "image": replace(image, data=run.read_blob(image.sha256))}


def _part(part: Any, rest: Iterator[Any], folder: Path, where: str) -> Any:
    if not isinstance(part, Mapping):
        return part
    # Arrow gives every part every column: what a part does not have is null
    given = {name: value for name, value in part.items() if value is not None}
    if given.get("type") not in IMAGE_PARTS:
        return given
    source = _first(given, "image", "image_url", "url", "path")
    if source is None and (source := next(rest, None)) is None:
        raise DataError(
            f"{where}: a part of type image has no image, and the column 'images' has none left"
        )
    return {"type": "image", "image": _anchored(source, folder, where)}


def _split(text: str) -> list[dict[str, str]]:
    """Parts of a text with placeholders, each placeholder an image."""
    parts: list[dict[str, str]] = []
    for number, piece in enumerate(text.split(_PLACEHOLDER)):
        if number:
            parts.append({"type": "image"})
        if piece:
            parts.append({"type": "text", "text": piece})
    return parts


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _anchored(source: Any, folder: Path, where: str) -> str | Image:
    """A file's name from ``folder`` on, to be read later; anything else read."""
    if isinstance(source, Mapping):
        found = _first(source, "bytes", "url", "path")
        source = source if found is None else found
    if isinstance(source, str) and not source.startswith(("data:", "http://", "https://")):
        return str(folder / Path(source).expanduser())
    return Image.read(source, f"{where}: an image")
