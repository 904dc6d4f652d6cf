"""Frames: the only wire format of owner, supervisor and slots, a JSON header and raw blobs.

Where several links share one stream, a container's standard input and output, the bytes of each
travel in frames as well: their header names the link, and their one blob is a piece of it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_PREFIX = struct.Struct("!IQ")
MAX_HEADER_BYTES = 16 * 2**20
MAX_FRAME_BYTES = 2 * 2**30
CONTROL = 0
"""The link to the supervisor; the link to slot n has the number n + 1."""
_PIECE_BYTES = 1 << 18

Header = dict[str, Any]
Frame = tuple[Header, list[bytes]]


class FrameError(ValueError):
    """The peer sent something that is not a frame."""


def encode(header: Header, blobs: Sequence[bytes] = ()) -> bytes:
    """One frame: 4 bytes header length, 8 bytes length of all blobs, header, blobs."""
    head = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    body = sum(len(blob) for blob in blobs)
    return b"".join((_PREFIX.pack(len(head), body), head, *blobs))


def on_link(link: int, op: str, data: bytes = b"") -> bytes:
    """Bytes of a link, in pieces that hold up no other link for long.

    Args:
        link: its number.
        op: ``open`` a slot behind it, ``data`` on it, or its ``end``.
        data: what it carries.
    """
    header = {"link": link, "op": op}
    starts = range(0, len(data) or 1, _PIECE_BYTES)
    return b"".join(
        encode(header, [data[start : start + _PIECE_BYTES]]) for start in starts
    )


def cut(
    buffer: bytearray, head: struct.Struct, body_bytes: Callable[..., int]
) -> Iterator[tuple[Any, bytes]]:
    """Take what is whole off the start of a buffer: the fields of each head, and the body.

    Args:
        buffer: what was read.
        head: how a body is announced.
        body_bytes: the length of a body, by the fields of its head.
    """
    while len(buffer) >= head.size:
        fields = head.unpack_from(buffer)
        end = head.size + body_bytes(*fields)
        if len(buffer) < end:
            return
        body = bytes(buffer[head.size : end])
        del buffer[:end]
        yield fields, body


class FrameDecoder:
    """Cuts a byte stream into frames.

    Raises:
        FrameError: from :meth:`feed`, where the stream is not made of frames.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add what was read; yields every frame that is now whole."""
        self._buffer += data
        for (head_len, _), body in cut(self._buffer, _PREFIX, _body_bytes):
            header: Header = json.loads(body[:head_len])
            blobs = []
            start = head_len
            for size in header.pop("sizes"):
                blobs.append(body[start : start + size])
                start += size
            yield header, blobs


def _body_bytes(head_len: int, blobs_len: int) -> int:
    if head_len > MAX_HEADER_BYTES or blobs_len > MAX_FRAME_BYTES:
        raise FrameError(
            f"a frame announces {head_len} + {blobs_len} bytes; the stream is corrupt"
        )
    return head_len + blobs_len
