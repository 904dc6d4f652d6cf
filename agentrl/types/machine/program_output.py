"""Program output: its last bytes are kept, so that the error of a program can tell them."""

from __future__ import annotations

import asyncio

_KEPT_BYTES = 2000


async def keep_end(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Reads a stream to its end, so that the program never blocks, and keeps its last bytes."""
    while chunk := await stream.read(65536):
        kept += chunk
        del kept[:-_KEPT_BYTES]


def told_end(errors: bytearray) -> str:
    """What a program's standard error ends with, in words; empty where it has none."""
    text = errors.decode(errors="replace").strip()
    return f"its standard error ends with: {text}" if text else ""
