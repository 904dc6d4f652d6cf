"""Multiplexer: several byte streams over a container's standard input and output."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .frames import FrameError, cut

CONTROL = 0  # the link to the supervisor; the link to slot n has the number n + 1
OPEN, DATA, END = range(3)  # a slot is wanted; bytes of a link; a link has ended
MAX_CHUNK_BYTES = 1 << 18

_HEAD = struct.Struct("!BII")

Chunk = tuple[int, int, bytes]


def encode(kind: int, link: int, data: bytes = b"") -> bytes:
    """``data`` in chunks of at most ``MAX_CHUNK_BYTES``: 1 byte kind, 4 bytes link, 4 bytes length,
    bytes.
    """
    parts = []
    for start in range(0, len(data) or 1, MAX_CHUNK_BYTES):
        part = data[start : start + MAX_CHUNK_BYTES]
        parts += [_HEAD.pack(kind, link, len(part)), part]
    return b"".join(parts)


class ChunkDecoder:
    """Cuts what comes into chunks.

    Raises:
        FrameError: from :meth:`feed`, where the stream is not made of chunks.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """Add what was read; yields every chunk that is now whole."""
        self._buffer += data
        for (kind, link, _), body in cut(self._buffer, _HEAD, _body_bytes):
            yield kind, link, body


def _body_bytes(kind: int, _: int, length: int) -> int:
    if kind > END or length > MAX_CHUNK_BYTES:
        raise FrameError(f"a chunk announces kind {kind} and {length} bytes; the stream is corrupt")
    return length
