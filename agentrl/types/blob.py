"""Blobs: bytes that a record names by their hash, images among them."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.guards.secret_mask import beginning

MAX_BLOB_BYTES = 2**20
"""A larger state or file is noted by its size and not kept."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A state of an environment, or a file of its sandbox.

    Args:
        sha256: the hash of the bytes in hexadecimal; empty where nobody read them.
        num_bytes: their number.
        left_out: why the bytes are not kept; empty where they are.
        data: the bytes; None where they are left out, and after the blob was read from a store,
            whose ``read_blob(sha256)`` has them.
    """

    sha256: str
    num_bytes: int
    left_out: str = ""
    data: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """These bytes; a note of their size where they are more than ``MAX_BLOB_BYTES``."""
        if len(data) > MAX_BLOB_BYTES:
            return cls.too_large(len(data))
        return cls(hashlib.sha256(data).hexdigest(), len(data), data=data)

    @classmethod
    def too_large(cls, num_bytes: int) -> Blob:
        """A note in place of bytes that are more than ``MAX_BLOB_BYTES``."""
        return cls(
            "", num_bytes, f"{num_bytes} bytes, and at most {MAX_BLOB_BYTES} are kept"
        )

    def __str__(self) -> str:
        return self.left_out or f"{self.num_bytes} bytes, sha256 {self.sha256}"


_MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
_MODES = ("RGB", "L")
# This is EXIF's tag of it.
_ORIENTATION = 0x0112
# The rollouts of a group share images.
_REMEMBERED = 32
_FORMS = (
    "bytes, a file's path, a data: URI, a PIL image, "
    "or a mapping with 'url', 'bytes' or 'path'"
)


@dataclass(frozen=True, slots=True)
class Image:
    """One image, encoded as PNG, JPEG or WebP: upright, one frame, and without transparency.

    Every reader decodes such bytes to the same pixels.

    Args:
        sha256: the hash of ``data`` in hexadecimal, by which the image is stored and counted.
        media_type: such as ``image/png``.
        width, height: in pixels.
        num_bytes: the size of ``data``.
        data: the encoded image; None after it was read from a store, whose ``read_blob(sha256)``
            has it.
    """

    sha256: str
    media_type: str
    width: int
    height: int
    num_bytes: int
    data: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, source: object, where: str = "image") -> Image:
        """Reads an image from any supported form.

        - Bytes that every reader decodes alike are kept. Others (rotated by EXIF, transparent, with
          a palette) are encoded again as an upright RGB PNG, with transparent parts on white.
        - More than 8 bits a channel are refused if they would have to be scaled.

        Args:
            source: an ``Image``, bytes, a file's path, a ``data:`` URI, a PIL image, or a mapping
                with ``url``, ``bytes`` or ``path`` (OpenAI's ``image_url`` and the images of
                Hugging Face ``datasets``).
            where: its place, for the error.

        Raises:
            DataError: another form, or an unreadable image; names the place and the value found.
        """
        if isinstance(source, Image):
            return source
        if isinstance(source, Mapping):
            forms = map(source.get, ("url", "bytes", "path"))
            inner = next((form for form in forms if form is not None), None)
            if inner is None or isinstance(inner, Mapping):
                raise DataError(
                    f"{where} must be {_FORMS}, got a mapping with {', '.join(map(str, source))}"
                )
            return cls.read(inner, where)
        data = _encoded(source, where)
        try:
            return _decoded(_png(source) if data is None else data)
        except (OSError, ValueError, SyntaxError) as error:
            found = "a PIL image" if data is None else f"{len(data)} bytes"
            raise DataError(
                f"{where}: {found} that cannot be read as an image: {error}; give PNG or JPEG"
            ) from error

    def data_uri(self) -> str:
        """The image as a ``data:`` URI (RFC 2397).

        Raises:
            DataError: the image was read from a store without its bytes.
        """
        return f"data:{self.media_type};base64,{base64.b64encode(self.bytes()).decode()}"

    def bytes(self) -> bytes:
        """The encoded image.

        Raises:
            DataError: the image was read from a store without its bytes.
        """
        if self.data is None:
            raise DataError(
                f"the bytes of image {self.sha256} are not at hand; read them with "
                f"RunDirectory.read_blob"
            )
        return self.data

    def __str__(self) -> str:
        return f"image {self.width}x{self.height}, {self.num_bytes} bytes, sha256 {self.sha256}"


def _encoded(source: object, where: str) -> bytes | None:
    """The bytes of a source; None for a PIL image."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and source.startswith("data:"):
        return _of_data_uri(source, where)
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        raise DataError(
            f"{where} is at {beginning(source, 200)}, and nothing is fetched in a run; save it "
            "and name the file"
        )
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        try:
            return path.read_bytes()
        except (OSError, ValueError) as error:
            # A path with a null character is a ValueError.
            shown = beginning(str(path), 200)
            reason = getattr(error, "strerror", None) or error
            raise DataError(
                f"{where}: the file {shown!r} cannot be read: {reason}; name an image's file"
            ) from error
    from PIL import Image as Pictures

    if isinstance(source, Pictures.Image):
        return None
    raise DataError(f"{where} must be {_FORMS}, got {type(source).__name__}")


def _of_data_uri(uri: str, where: str) -> bytes:
    head, comma, body = uri.partition(",")
    if not comma or not head.endswith(";base64"):
        raise DataError(
            f"{where} must be a data: URI in base64 (data:image/png;base64,...), got "
            f"{beginning(uri, 60)!r}"
        )
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise DataError(
            f"{where} is a data: URI whose base64 is broken: {error}"
        ) from error


@functools.lru_cache(_REMEMBERED)
def _decoded(data: bytes) -> Image:
    """The image of encoded bytes, whose pixels have all been read.

    Raises:
        OSError, ValueError, SyntaxError: PIL cannot read the bytes.
    """
    from PIL import Image as Pictures
    from PIL import UnidentifiedImageError

    try:
        with Pictures.open(io.BytesIO(data)) as picture:
            media_type = _MEDIA_TYPES.get(picture.format or "")
            turned = picture.getexif().get(_ORIENTATION, 1) != 1
            one = (
                getattr(picture, "n_frames", 1) == 1 and "transparency" not in picture.info
            )
            picture.load()
            if media_type is not None and not turned and one and picture.mode in _MODES:
                return Image(
                    hashlib.sha256(data).hexdigest(),
                    media_type,
                    *picture.size,
                    len(data),
                    data,
                )
            return _decoded(_png(picture))
    except UnidentifiedImageError as error:
        # PIL's own words hold an address.
        raise ValueError("their format is not known") from error
    except Pictures.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def _png(source: Any) -> bytes:
    """A PIL image as an upright RGB PNG."""
    from PIL import Image as Pictures
    from PIL import ImageOps

    if source.mode.startswith(("I", "F")):
        raise ValueError(
            f"its mode is {source.mode}, whose scale is not known; save it with 8 bits a channel"
        )
    upright = ImageOps.exif_transpose(source)
    if upright.has_transparency_data:
        seen = upright.convert("RGBA")
        upright = Pictures.alpha_composite(Pictures.new("RGBA", seen.size, "white"), seen)
    encoded = io.BytesIO()
    upright.convert("RGB").save(encoded, "PNG")
    return encoded.getvalue()
