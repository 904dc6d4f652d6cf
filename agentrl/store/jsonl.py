"""JSON lines: append-only files of one object a line.

A line is there from its first byte to its newline, or it was partial by a death and never counted:
reading waits for the end of a partial last line, opening for append cuts it off. Whoever reads such
a file, once or again and again while it grows, reads it by :class:`JsonFollower`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from agentrl.errors import StoreError
from agentrl.guards.regular_file import check_regular, open_regular
from agentrl.guards.secret_mask import SecretMask
from agentrl.store.disk import (
    Stamp,
    os_refusals,
    sync_path,
    write_bytes,
    write_failure,
    write_refusals,
)
from agentrl.store.json_text import from_json, to_json

Record: TypeAlias = dict[str, Any]
Damage: TypeAlias = Callable[[StoreError], None]
"""Is told of what cannot be read, which is then passed over."""


class DamageList(list[str]):
    """What could not be read, each part once."""

    def add(self, error: StoreError) -> None:
        """Take it down; to be given as ``Damage``."""
        if str(error) not in self:
            self.append(str(error))


MAX_LINE = 2**28
"""Bytes of a line."""

_BLOCK = 1 << 22
_REMEMBERED = 256
"""Bytes at either end of the last line, by which the same file is known again."""


class JsonlWriter:
    """Appends objects to a file; safe to use from several threads.

    A line survives the death of the process as soon as ``append`` returns, and the death of the
    machine once ``sync`` has returned.

    Args:
        path: the file; made where there is none, cut back to its last whole line where there is
            one.
        mask: hides secrets in every line; None writes lines as given, for files of numbers.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, mask: SecretMask | None = None) -> None:
        self.path = path
        self._mask = mask
        # Guards _file and _size, so that lines of several threads stay whole.
        self._lock = threading.Lock()
        self._file: int | None = None
        with write_refusals(path, "cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._size = cut_torn_line(self._file)
            # The name of a new file becomes durable with its folder.
            sync_path(path.parent)

    @property
    def size(self) -> int:
        """Bytes of the whole lines so far: the offset at which the next one starts."""
        return self._size

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            StoreError: the file is closed, or the line cannot be written.
        """
        text = to_json(record)
        data = ((self._mask(text) if self._mask else text) + "\n").encode()
        with self._lock:
            file = self._opened()
            try:
                write_all(file, data)
            except OSError as error:
                # The next line would be glued to what came to the disk of this one.
                with suppress(OSError):
                    os.ftruncate(file, self._size)
                raise write_failure(
                    f"{self.path} cannot be written", self.path, error
                ) from error
            self._size += len(data)

    def sync(self) -> None:
        """Make every line so far durable.

        Raises:
            StoreError: the file is closed, or the disk refuses.
        """
        # Under the lock, or another thread could close the descriptor, which the system gives to
        # another file.
        with self._lock, write_refusals(self.path, "cannot be synced"):
            os.fsync(self._opened())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _opened(self) -> int:
        if self._file is None:
            raise StoreError(f"{self.path} is closed")
        return self._file


class JsonFollower:
    """Follows one file that grows by whole lines; a partial last line waits for its end.

    A file that was replaced, cut back before the last look's end or rewritten is read from its
    beginning. Used by one thread.

    Args:
        path: the file; it need not exist yet.
        offset: where an earlier follower of the file stopped.

    Attributes:
        offset: behind the last line that was read.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._is_numbered = offset == 0
        self._marks: tuple[tuple[int, bytes], ...] = (
            ((offset - 1, b"\n"),) if offset else ()
        )
        """Where and what the ends of the last line are, as far as they are known."""
        self._stamp: Stamp | None = None
        """Of the file when it was last found to be the same."""
        self._end = 0
        self._num_read = 0

    def look(
        self, on_damage: Damage | None = None
    ) -> tuple[bool, Iterator[tuple[int, Record]]]:
        """What came since the last look.

        Args:
            on_damage: is told of a whole line that is no JSON object, and of a file that cannot be
                read.

        Returns:
            Whether all that was read still stands in the file, and each new object with the offset
            of its line. A line counts as read once the next one is asked for.

        Raises:
            StoreError: without ``on_damage`` what it would be told.
        """
        told = on_damage or _raise
        try:
            return self.is_same(), self._records(told)
        except StoreError as error:
            told(error)
            return True, iter(())

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
            stamp = Stamp.of(found) if found else None
            if stamp == self._stamp:
                return True
            self._end = stamp.size if stamp else 0
            replaced = self._stamp is not None and (
                not stamp or stamp.inode != self._stamp.inode
            )
            same = not self.offset or (not replaced and self._has_marks())
            self._stamp = stamp
            if not same:
                self.offset = 0
                self._num_read = 0
                self._is_numbered = True
            return same

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each whole line that was not read yet when ``is_same`` looked: where it starts, and its
        bytes without the newline.

        Raises:
            StoreError: the file cannot be read.
        """
        if self.offset >= self._end:
            return
        with os_refusals(f"{self.path} cannot be read"):
            try:
                file = open_regular(self.path)
            # removed since ``is_same``, which tells it the next time
            except FileNotFoundError:
                return
            with file:
                file.seek(self.offset)
                yield from self._lines_of(file)

    def _records(self, told: Damage) -> Iterator[tuple[int, Record]]:
        try:
            for start, line in self.lines():
                try:
                    record = parse_line(self._place(start), line)
                except StoreError as error:
                    told(error)
                else:
                    yield start, record
        except StoreError as error:
            told(error)

    def _lines_of(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        partial = b""
        while block := file.read(_BLOCK):
            *lines, rest = block.split(b"\n")
            for line in lines:
                whole = partial + line
                partial = b""
                start = self.offset
                yield start, whole
                tail = whole[1 - _REMEMBERED :] + b"\n"
                self.offset = start + len(whole) + 1
                self._num_read += 1
                self._marks = (
                    (start, whole[:_REMEMBERED]),
                    (self.offset - len(tail), tail),
                )
            partial += rest
            if len(partial) >= MAX_LINE:
                place = self._place(self.offset)
                raise StoreError(f"{place} must have less than {MAX_LINE:,} bytes")

    def _place(self, start: int) -> str:
        """Where a line is, for a message; its number is known where all lines were read."""
        if self._is_numbered:
            return f"{self.path}:{self._num_read + 1}"
        return f"the line at {start} of {self.path}"

    def _has_marks(self) -> bool:
        if self._end < self.offset:
            return False
        with open_regular(self.path) as file:
            for start, mark in self._marks:
                file.seek(start)
                if file.read(len(mark)) != mark:
                    return False
        return True


def read_jsonl(path: Path, on_damage: Damage | None = None) -> Iterator[Record]:
    """The objects of a file in order, but for a partial last line; nothing where there is no file.

    Args and errors as of ``JsonFollower.look``.
    """
    _, records = JsonFollower(path).look(on_damage)
    for _, record in records:
        yield record


def _raise(error: StoreError) -> None:
    raise error


def parse_line(place: str, line: bytes) -> Record:
    """The object of a whole line.

    Args:
        place: where the line is, for the message.
        line: its bytes.

    Raises:
        StoreError: it is none.
    """
    try:
        record = from_json(line)
    except ValueError as error:
        raise StoreError(f"{place} must be a JSON object: {error}") from error
    if not isinstance(record, dict):
        raise StoreError(f"{place} must be a JSON object, got {type(record).__name__}")
    return record


def keep_lines(path: Path, keep: Callable[[Record], bool]) -> int:
    """Rewrite a file, in one step, without the lines that ``keep`` refuses; for a run that goes
    back to a checkpoint.

    Returns:
        How many lines went.

    Raises:
        StoreError: the file cannot be read or written.
    """
    records = list(read_jsonl(path))
    kept = [record for record in records if keep(record)]
    if len(kept) < len(records):
        write_bytes(path, "".join(to_json(record) + "\n" for record in kept).encode())
    return len(records) - len(kept)


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data`` at the end of a file.

    Raises:
        OSError: the disk is full, or any other refusal; part of ``data`` may have been written.
    """
    view = memoryview(data)
    # One write may take less than it is given.
    while view:
        view = view[os.write(file, view) :]


def cut_torn_line(file: int) -> int:
    """Cut what follows the last newline of an open file; the size that is left."""
    size = end = os.fstat(file).st_size
    block = 1 << 16
    while end > 0:
        start = max(0, end - block)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return end
