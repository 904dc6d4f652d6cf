"""Wire: answers as JSON, with arrays in base64, and the kinds of images that are shown."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from starlette.responses import Response

from agentrl.store.json_text import to_json
from agentrl.types.arrays import AnyArray

_DTYPES = {"f": "<f4", "i": "<i4", "u": "<i4"}


class PackedArray(dict[str, str]):
    """An array as it travels. A type of its own tells it from a mapping of a run with its keys."""


def packed(array: AnyArray) -> PackedArray:
    """An array for ``static/lib/arrays.js``: ``{"dtype", "data"}``.

    Args:
        array: one-dimensional; floats travel as ``<f4``, single bytes as ``|i1``, other integers as
            ``<i4``.
    """
    # The browser reads these as typed arrays, without parsing a number.
    dtype = "|i1" if array.dtype == np.int8 else _DTYPES[array.dtype.kind]
    data = np.ascontiguousarray(array, dtype).tobytes()
    return PackedArray(dtype=dtype, data=base64.b64encode(data).decode())


def finite(value: float | None) -> float | None:
    """``value``, or None where JSON has no word for it."""
    return value if value is not None and math.isfinite(value) else None


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer; half of a surrogate pair, which UTF-8 lacks, travels as an escape."""
    return Response(to_json(value).encode(), status, media_type="application/json")


def data_url(data: bytes, kind: str) -> str:
    """Bytes as a URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def image_type(data: bytes) -> str | None:
    """The type of an image; None for all else, such as SVG, which may run scripts."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _STARTS.items() if data.startswith(start)), None)
