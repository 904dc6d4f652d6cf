"""Output: reads what the code writes to a pipe, and keeps it up to a limit."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass
class Output:
    """One output of the child, kept up to its limit."""

    fd: int
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def read(self) -> bool:
        """Take what is there; False at the end of the stream."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return True
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.truncated = self.truncated or len(data) > room
        return bool(data)

    def drain(self) -> None:
        """What lies in the pipe after every writer has ended."""
        while not self.truncated:
            before = len(self.kept)
            if not self.read() or len(self.kept) == before:
                return
