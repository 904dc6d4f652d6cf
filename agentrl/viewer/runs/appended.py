"""Appended lines: the objects that were added to a file of JSON lines since the last look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.regular_file import NotRegularError, check_regular, open_regular
from agentrl.store.jsonl import parse_line


class AppendedLines:
    """Follows one file that a run appends to, replaces or cuts. Used under its owner's lock.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_id = 0
        self._offset = 0
        self.damage: list[str] = []
        """Lines that are no JSON object, which are passed over; or why the file is."""

    def take(self) -> tuple[bool, list[dict[str, Any]]]:
        """What came since the last call.

        Returns:
            Whether the file started over, as when a run goes back to a checkpoint, so that all that
            was taken before is void; and the new objects.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            state = check_regular(self._path)
        except (FileNotFoundError, NotRegularError) as error:
            if isinstance(error, NotRegularError) and not self.damage:
                self.damage.append(f"{self._path} cannot be read: {error.strerror}")
            restarted = self._offset > 0
            self._offset = 0
            return restarted, []
        replaced = state.st_ino != self._file_id or state.st_size < self._offset
        restarted = self._offset > 0 and replaced
        if restarted:
            self._offset = 0
        self._file_id = state.st_ino
        if state.st_size == self._offset:
            return restarted, []
        with open_regular(self._path) as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        return restarted, self._parsed(data[:end])

    def _parsed(self, data: bytes) -> list[dict[str, Any]]:
        records = []
        for line in data.split(b"\n")[:-1]:
            try:
                records.append(parse_line(f"a line of {self._path.name}", line))
            except StoreError as error:
                self.damage.append(str(error))
        return records
