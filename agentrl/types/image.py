"""Images in messages: read from whatever they are given as, and named by the hash of their bytes ever after.

A message's ``content`` is text, or a list of parts: ``{"type": "text", "text": ...}`` and ``{"type": "image",
"image": ...}``. As given, an image may be many things (``Image.read``), and may come in OpenAI's shape, ``{"type":
"image_url", "image_url": {"url": ...}}``. ``with_images`` makes an ``Image`` of each; renderer, engine and store see
nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.types.messages import Message

__all__ = ["Image", "content_text", "images_in", "with_images"]

_MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
_MODES = ("RGB", "L")
_ORIENTATION = 0x0112  # of EXIF
_FORMS = "bytes, a file's path, a data: URI, a PIL image, or a mapping with 'url', 'bytes' or 'path'"


@dataclass(frozen=True, slots=True)
class Image:
    """One image, encoded as PNG, JPEG or WebP: upright, one frame, and without transparency.

    Every reader of such bytes (the engine's server, the trainer) finds the same pixels in them.

    Args:
        sha256: of ``data``, in hexadecimal: what the image is called wherever it is stored or counted.
        media_type: such as ``image/png``.
        width, height: in pixels.
        num_bytes: of ``data``.
        data: the encoded image; None where it was read back from a store, whose ``read_blob(sha256)`` has it.
    """

    sha256: str
    media_type: str
    width: int
    height: int
    num_bytes: int
    data: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, source: object, where: str = "image") -> Image:
        """The image that ``source`` is.

        Bytes that every reader reads alike are kept as they are; others (turned by EXIF, transparent, of a palette,
        of 16 bits) are written anew as an upright RGB PNG, transparent parts on white.

        Args:
            source: an ``Image``, bytes, a file's path, a ``data:`` URI, a PIL image, or a mapping with ``url``,
                ``bytes`` or ``path`` (OpenAI's ``image_url`` and the images of Hugging Face ``datasets``).
            where: its place, for the error.

        Raises:
            DataError: it is none of these, or cannot be read; names the place and what was found.
        """
        if isinstance(source, Image):
            return source
        if isinstance(source, Mapping):
            inner = next((source[name] for name in ("url", "bytes", "path") if source.get(name) is not None), None)
            if inner is None or isinstance(inner, Mapping):
                raise DataError(f"{where} must be {_FORMS}, got a mapping with {', '.join(map(str, source))}")
            return cls.read(inner, where)
        data = _encoded(source, where)
        return _decoded(data, where) if data is not None else _decoded(_png(source), where)

    def data_uri(self) -> str:
        """The image as a ``data:`` URI (RFC 2397).

        Raises:
            DataError: its bytes are not at hand.
        """
        return f"data:{self.media_type};base64,{base64.b64encode(self.bytes()).decode()}"

    def bytes(self) -> bytes:
        """The encoded image.

        Raises:
            DataError: it was read back from a store without them.
        """
        if self.data is None:
            raise DataError(f"the bytes of image {self.sha256} are not at hand; read them with RunDirectory.read_blob")
        return self.data

    def without_data(self) -> Image:
        """The same image by name alone."""
        return Image(self.sha256, self.media_type, self.width, self.height, self.num_bytes)

    def __str__(self) -> str:
        return f"image {self.width}x{self.height}, {self.num_bytes} bytes, sha256 {self.sha256}"


def with_images(messages: Iterable[Message], named: Mapping[str, object] | None = None) -> tuple[Message, ...]:
    """The messages with each content as text, or as parts of which each image is an ``Image``.

    Args:
        messages: as an environment, a tool or a data set gave them.
        named: images by the names that parts may use, ``{"type": "image", "image": NAME}``.

    Raises:
        DataError: a part that is none, an image that cannot be read, or one in an assistant's message.
    """
    return tuple(
        message if _is_plain(content := message.get("content")) else _read_parts(message, content, named or {})
        for message in messages
    )


def images_in(messages: Iterable[Message]) -> Iterator[Image]:
    """The images of messages that went through ``with_images``, in their order."""
    for message in messages:
        if isinstance(content := message.get("content"), list | tuple):
            for part in content:
                if isinstance(part, Mapping) and isinstance(image := part.get("image"), Image):
                    yield image


def content_text(content: object) -> str:
    """A content for people: its text, each image as one word in brackets."""
    if isinstance(content, str) or content is None:
        return content or ""
    if not isinstance(content, list | tuple):
        return str(content)
    return "".join(
        str(part["text"]) if "text" in part else f"[{part['image']}]" if "image" in part else str(part)
        for part in content
    )


def _is_plain(content: object) -> bool:
    return content is None or isinstance(content, str)


def _read_parts(message: Message, content: Any, named: Mapping[str, object]) -> Message:
    role = message["role"]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise DataError(
            f"the content of a {role} message must be text or a list of parts, got {type(content).__name__}"
        )
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        where = f"part {number} of a {role} message"
        read = _read_part(part, where, named)
        if "image" in read and role == "assistant":
            raise DataError(f"{where} is an image, and what an assistant writes is text; give it to the user's turn")
        if parts and "text" in read and "text" in parts[-1]:
            read = {"type": "text", "text": parts.pop()["text"] + read["text"]}
        parts.append(read)
    if all("text" in part for part in parts):
        return {**message, "content": parts[0]["text"] if parts else ""}
    return {**message, "content": parts}


def _read_part(part: object, where: str, named: Mapping[str, object]) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping):
        if kind == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if kind in ("image", "image_url"):
            given = next((part[name] for name in ("image", "image_url", "url", "path") if part.get(name)), None)
            if isinstance(given, str) and given in named:
                given = named[given]
            return {"type": "image", "image": Image.read(given, where)}
    raise DataError(
        f'{where} must be {{"type": "text", "text": ...}} or {{"type": "image", "image": ...}}, got '
        f"{f'type {kind!r}' if isinstance(part, Mapping) else type(part).__name__}; other kinds are not supported"
    )


def _encoded(source: object, where: str) -> bytes | None:
    """The bytes of a source; None for a PIL image, which has none."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and source.startswith("data:"):
        return _of_data_uri(source, where)
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        raise DataError(f"{where} is at {source[:200]}, and nothing is fetched in a run; save it and name the file")
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        try:
            return path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}..."
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{where}: the file {shown!r} cannot be read: {reason}; name an image's file") from error
    from PIL import Image as Pictures

    if isinstance(source, Pictures.Image):
        return None
    raise DataError(f"{where} must be {_FORMS}, got {type(source).__name__}")


def _of_data_uri(uri: str, where: str) -> bytes:
    head, comma, body = uri.partition(",")
    if not comma or not head.endswith(";base64"):
        raise DataError(f"{where} must be a data: URI in base64 (data:image/png;base64,...), got {uri[:60]!r}")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise DataError(f"{where} is a data: URI whose base64 is broken: {error}") from error


def _decoded(data: bytes, where: str) -> Image:
    """The image of encoded bytes; every pixel of it was read."""
    from PIL import Image as Pictures

    try:
        with Pictures.open(io.BytesIO(data)) as picture:
            media_type = _MEDIA_TYPES.get(picture.format or "")
            turned = picture.getexif().get(_ORIENTATION, 1) != 1
            one = getattr(picture, "n_frames", 1) == 1 and "transparency" not in picture.info
            picture.load()
            kept = media_type is not None and not turned and one and picture.mode in _MODES
            data = data if kept else _png(picture)
            width, height = picture.size if kept else _size(data)
    except (OSError, ValueError, SyntaxError, Pictures.DecompressionBombError) as error:
        raise DataError(
            f"{where}: {len(data)} bytes that are no image that can be read ({error}); give PNG, JPEG or WebP"
        ) from error
    sha256 = hashlib.sha256(data).hexdigest()
    return Image(sha256, media_type if kept and media_type else "image/png", width, height, len(data), data)


def _png(source: Any) -> bytes:
    """A PIL image as an upright RGB PNG."""
    from PIL import Image as Pictures
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(source)
    if upright.has_transparency_data:
        seen = upright.convert("RGBA")
        upright = Pictures.alpha_composite(Pictures.new("RGBA", seen.size, "white"), seen)
    encoded = io.BytesIO()
    upright.convert("RGB").save(encoded, "PNG")
    return encoded.getvalue()


def _size(data: bytes) -> tuple[int, int]:
    from PIL import Image as Pictures

    with Pictures.open(io.BytesIO(data)) as picture:
        return picture.size
