"""Noted trajectories: those that people wrote notes on."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.jsonl import read_jsonl
from agentrl.store.run_directory import RunDirectory


class UnreadableNotesError(StoreError):
    """It is not known which trajectories have notes."""


class NotedTrajectories:
    """The trajectories that notes of a run are about; read again when a file of them changed.

    Args:
        run: whose notes.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.notes_folder
        self._signature: list[tuple[str, int, int]] = []
        self._ids: frozenset[str] = frozenset()

    def ids(self) -> frozenset[str]:
        """Their ids now.

        Raises:
            UnreadableNotesError: a file of notes cannot be read.
        """
        try:
            states = [(path, path.lstat()) for path in sorted(self._folder.glob("*.jsonl"))]
            signature = [(path.name, state.st_size, state.st_mtime_ns) for path, state in states]
            if signature != self._signature:
                self._ids = frozenset(one for path, _ in states for one in _noted(path))
                self._signature = signature
        except (OSError, StoreError) as error:
            raise UnreadableNotesError(
                f"the notes of {self._folder} cannot be read, so that it is not known what must "
                f"stay: {error}"
            ) from error
        return self._ids


def _noted(path: Path) -> set[str]:
    noted: dict[str, str] = {}
    for record in read_jsonl(path, _leave_to_the_viewer):
        if record.get("deleted"):
            noted.pop(str(record.get("id")), None)
        else:
            noted[str(record.get("id"))] = str(record.get("trajectory"))
    return set(noted.values())


def _leave_to_the_viewer(error: StoreError) -> None:
    """A line that is no JSON is no note; the viewer names it."""
    if isinstance(error.__cause__, OSError):
        raise error
