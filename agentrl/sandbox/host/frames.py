"""Frames: the wire format of owner, supervisor and slot, a JSON header and raw blobs."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_PREFIX = struct.Struct("!IQ")
MAX_HEADER_BYTES = 16 * 2**20
MAX_FRAME_BYTES = 2 * 2**30

Header = dict[str, Any]


class FrameError(ValueError):
    """The peer sent something that is not a frame."""


def encode(header: Header, blobs: Sequence[bytes] = ()) -> bytes:
    """One frame: 4 bytes header length, 8 bytes length of all blobs, header, blobs."""
    head = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    body = sum(len(blob) for blob in blobs)
    return b"".join((_PREFIX.pack(len(head), body), head, *blobs))


class FrameDecoder:
    """Cuts a byte stream into frames.

    Raises:
        FrameError: from :meth:`feed`, where the stream is not made of frames.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, list[bytes]]]:
        """Add what was read; yields every frame that is now whole."""
        self._buffer += data
        while len(self._buffer) >= _PREFIX.size:
            head_len, body_len = _PREFIX.unpack_from(self._buffer)
            if head_len > MAX_HEADER_BYTES or body_len > MAX_FRAME_BYTES:
                raise FrameError(
                    f"a frame announces {head_len} + {body_len} bytes; the stream is corrupt"
                )
            total = _PREFIX.size + head_len + body_len
            if len(self._buffer) < total:
                return
            header: Header = json.loads(self._buffer[_PREFIX.size : _PREFIX.size + head_len])
            offset = _PREFIX.size + head_len
            blobs = []
            for size in header.pop("sizes"):
                blobs.append(bytes(self._buffer[offset : offset + size]))
                offset += size
            del self._buffer[:total]
            yield header, blobs
