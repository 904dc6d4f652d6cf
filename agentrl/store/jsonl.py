"""JSON lines: append-only files of one object a line.

A line is there from its first byte to its newline, or it was partial by a death and never counted:
reading passes over one partial last line, opening for append cuts it off.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.regular_file import open_regular
from agentrl.store.atomic import sync_path, write_bytes
from agentrl.store.json_text import from_json, to_json
from agentrl.store.masking import SecretMask
from agentrl.store.write_error import os_refusals, write_failure

MAX_LINE = 2**28
"""Bytes of a line."""


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
        with os_refusals(f"{path} cannot be opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._size = cut_torn_line(self._file)
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
                raise write_failure(f"{self.path} cannot be written", self.path, error) from error
            self._size += len(data)

    def sync(self) -> None:
        """Make every line so far durable.

        Raises:
            StoreError: the file is closed, or the disk refuses.
        """
        with self._lock, os_refusals(f"{self.path} cannot be synced"):
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


def read_jsonl(
    path: Path, on_damage: Callable[[StoreError], None] | None = None
) -> Iterator[dict[str, Any]]:
    """The objects of a file in order, but for a partial last line; nothing where there is no file.

    Args:
        path: the file.
        on_damage: is told of a whole line that is no JSON object, which is then passed over, and
            of a file that cannot be opened.

    Raises:
        StoreError: without ``on_damage`` the same; the disk fails.
    """
    told = on_damage or _raise
    refused = f"{path} cannot be read"
    try:
        with os_refusals(refused):
            file = open_regular(path)
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            told(error)
        return
    with file, os_refusals(refused):
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE), b""), start=1):
            place = f"{path}:{number}"
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE:
                    told(StoreError(f"{place} must have less than {MAX_LINE:,} bytes"))
                return
            try:
                record = parse_line(place, line)
            except StoreError as error:
                told(error)
            else:
                yield record


def _raise(error: StoreError) -> None:
    raise error


def parse_line(place: str, line: bytes) -> dict[str, Any]:
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


def keep_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
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
