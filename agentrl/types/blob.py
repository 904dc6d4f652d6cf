"""Blob: bytes that a record names by their hash, and that a store keeps once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

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
        return cls("", num_bytes, f"{num_bytes} bytes, and at most {MAX_BLOB_BYTES} are kept")

    def __str__(self) -> str:
        return self.left_out or f"{self.num_bytes} bytes, sha256 {self.sha256}"
