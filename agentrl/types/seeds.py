"""Seeds: derives every random number of a run from one root by name."""

from __future__ import annotations

import hashlib


def seed_for(root: int, purpose: str, *keys: int | str) -> int:
    """A 64-bit seed for ``purpose`` and ``keys`` under ``root``.

    It is the first 8 bytes of SHA-256 over the parts, each with its type and length, so that
    different keys never collide by concatenation.

    Args:
        root: ``run.seed``.
        purpose: the use of the numbers, such as ``"sample"``.
        keys: distinguish this use from others with the same purpose.

    Returns:
        An integer in [0, 2**64).
    """
    named = []
    for part in (root, purpose, *keys):
        text = str(part)
        size = len(text) if text.isascii() else len(text.encode())
        named.append(f"{type(part).__name__}:{size}:{text}")
    return int.from_bytes(hashlib.sha256("".join(named).encode()).digest()[:8], "big")
