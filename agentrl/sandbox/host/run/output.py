"""Output: reads what the code writes to a pipe, and keeps it up to a limit."""

from __future__ import annotations

import os

CHUNK = 1 << 16


class Output:
    """One output of the child, kept up to its limit."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.limit = limit
        self.kept = bytearray()
        self.truncated = False

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
