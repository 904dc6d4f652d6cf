"""Line follower: reads what was appended to a file of lines since the last look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from agentrl.errors import StoreError
from agentrl.guards.regular_file import check_regular, open_regular
from agentrl.store.jsonl import parse_line
from agentrl.store.write_error import os_refusals

_BLOCK = 1 << 22
_REMEMBERED = 256
"""Bytes at either end of the last line, by which the same file is known again."""


class AppendedRecord(NamedTuple):
    """The object of a line, where the line starts, its bytes, and both in words."""

    place: str
    start: int
    size: int
    value: dict[str, Any]


class LineFollower:
    """Follows one file that grows by whole lines; a partial last line waits for its end.

    A file that was replaced, cut back before the last look's end or rewritten is told by
    ``is_same``, and then read from its beginning. Used by one thread.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._marks: tuple[tuple[int, bytes], ...] = ()
        """Where and what the ends of the last line are."""
        self._stamp: tuple[int, ...] = ()
        """Of the file when it was last found to be the same."""
        self._end = 0

    @property
    def offset(self) -> int:
        """Where the lines end that were read."""
        return self._offset

    def is_same(self) -> bool:
        """Whether all that was read still stands in the file; where not, the next look begins
        again.

        Raises:
            StoreError: the file cannot be read.
        """
        with os_refusals(f"{self.path} cannot be read"):
            try:
                found = check_regular(self.path)
            except FileNotFoundError:
                found = None
            stamp = () if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self._stamp:
                return True
            self._end = 0 if found is None else found.st_size
            replaced = bool(self._stamp) and stamp[:1] != self._stamp[:1]
            same = not self._offset or (not replaced and self._has_marks())
            self._stamp = stamp
            if not same:
                self._offset = 0
            return same

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each whole line that was not read yet: where it starts, and its bytes without the
        newline. A line counts as read once the next one is asked for.

        Raises:
            StoreError: the file cannot be read.
        """
        if self._offset >= self._end:
            return
        with os_refusals(f"{self.path} cannot be read"):
            try:
                file = open_regular(self.path)
            except FileNotFoundError:  # removed since ``is_same``, which tells it the next time
                return
            with file:
                file.seek(self._offset)
                yield from self._lines_of(file)

    def records(self, on_damage: Callable[[StoreError], None]) -> Iterator[AppendedRecord]:
        """The object of each new line; one that holds none is told, and passed over.

        Raises:
            StoreError: the file cannot be read.
        """
        for start, line in self.lines():
            place = f"the line at {start} of {self.path}"
            try:
                record = parse_line(place, line)
            except StoreError as error:
                on_damage(error)
            else:
                yield AppendedRecord(place, start, len(line), record)

    def _lines_of(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        partial = b""
        while block := file.read(_BLOCK):
            *lines, rest = block.split(b"\n")
            for line in lines:
                whole = partial + line
                partial = b""
                start = self._offset
                yield start, whole
                tail = (whole + b"\n")[-_REMEMBERED:]
                self._offset = start + len(whole) + 1
                self._marks = ((start, whole[:_REMEMBERED]), (self._offset - len(tail), tail))
            partial += rest

    def _has_marks(self) -> bool:
        if self._end < self._offset:
            return False
        with open_regular(self.path) as file:
            for start, mark in self._marks:
                file.seek(start)
                if file.read(len(mark)) != mark:
                    return False
        return True
