"""A file on local disk that holds records for a store that is slower than the rollouts."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentrl.store.jsonl import write_all
from agentrl.store.trajectories.live import FramedRecord

__all__ = ["SpillFile", "Spilled"]


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where a record lies in the spill file."""

    offset: int
    text_bytes: int
    frame_bytes: int

    @property
    def size(self) -> int:
        return self.text_bytes + self.frame_bytes


class SpillFile:
    """First in, first out; the file has no name, so nothing of it outlives the process.

    Args:
        folder: where it lies; the system's temporary folder where None.
        max_bytes: ``has_room`` is false beyond it, until all that was put is taken and the file starts anew.
    """

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._end = 0
        self._held = 0

    def has_room(self) -> bool:
        """Whether one more record may come; its own size does not matter, so that any record fits at last."""
        return self._end < self._max_bytes

    def put(self, record: FramedRecord) -> Spilled:
        """Keep a record.

        Raises:
            OSError: the local disk refuses.
        """
        if self._file is None:
            with tempfile.TemporaryFile(dir=self._folder, prefix="agentrl-spill-") as file:
                self._file = os.dup(file.fileno())
        text = record.text.encode()
        place = Spilled(self._end, len(text), len(record.frame))
        os.lseek(self._file, self._end, os.SEEK_SET)
        write_all(self._file, text + record.frame)
        self._end += place.size
        self._held += place.size
        return place

    def take(self, place: Spilled) -> FramedRecord:
        """Give a record back and forget it.

        Raises:
            OSError: the local disk refuses.
        """
        if self._file is None:
            raise ValueError("nothing was spilled")
        data = os.pread(self._file, place.size, place.offset)
        self._held -= place.size
        if self._held == 0:
            os.ftruncate(self._file, 0)
            self._end = 0
        return FramedRecord(data[: place.text_bytes].decode(), data[place.text_bytes :])

    def close(self) -> None:
        """Give the space back; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
