"""Appended lines: the objects that were added to a file of JSON lines since the last look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.regular_file import NotRegularError
from agentrl.store.line_follower import LineFollower


class AppendedLines:
    """Follows one file that a run appends to, replaces or cuts. Used under its owner's lock.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._follower = LineFollower(path)
        self.damage: list[str] = []
        """Lines that are no JSON object, which are passed over; or why the file is."""

    def take(self) -> tuple[bool, list[dict[str, Any]]]:
        """What came since the last call.

        Returns:
            Whether the file started over, as when a run goes back to a checkpoint, so that all that
            was taken before is void; and the new objects.

        Raises:
            StoreError: the file is there and cannot be read.
        """
        restarted, records = False, []
        try:
            restarted = not self._follower.is_same()
            for record in self._follower.records(lambda error: self.damage.append(str(error))):
                records.append(record.value)
        except StoreError as error:
            if not isinstance(error.__cause__, NotRegularError):
                raise
            if str(error) not in self.damage:
                self.damage.append(str(error))
        return restarted, records
