"""File listing: which trajectory files, notes and ledger a run has, looked at cheaply and often."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentrl.store import RunDirectory
from agentrl.store.shard_folders import ShardFolders

_WHOLE_EVERY = 10
_NEWEST_STEPS = 16


class FileState(NamedTuple):
    """Size in bytes, and time of change in nanoseconds."""

    size: int
    modified: int


Files = Mapping[str, FileState]
"""By path, relative to the run."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a run at one time; equal ones mean that nothing was written in between."""

    live: Files
    sealed: Files
    notes: Files
    ledger: FileState | None


class Listing:
    """Lists a run's files; a folder of shards that did not change is not listed again.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._folders = ShardFolders(run.sealed_folder)
        self._sealed: Files = {}
        # One look in _WHOLE_EVERY asks every folder of a step, the others the newest alone: an
        # older step is hardly ever written again.
        self._looks = 0
        self._live_before: Set[str] = frozenset()

    def snapshot(self) -> Snapshot:
        """The files now.

        Raises:
            OSError: a folder cannot be read.
        """
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        live = self._states(self._run.live_folder.glob("step=*/*.jsonl"))
        sealed_some = not self._live_before <= live.keys()
        self._live_before = live.keys()
        whole = sealed_some or self._looks % _WHOLE_EVERY == 0
        self._looks += 1
        added, gone = self._folders.look(None if whole else _NEWEST_STEPS)
        if added or gone:
            left = {self._name(path) for path in gone}
            kept = {name: state for name, state in self._sealed.items() if name not in left}
            self._sealed = kept | self._states(added)
        notes = self._states(self._run.notes_folder.glob("*.jsonl"))
        ledger = self._states([self._run.ledger_path])
        return Snapshot(live, self._sealed, notes, next(iter(ledger.values()), None))

    def _states(self, paths: Iterable[Path]) -> dict[str, FileState]:
        """Those of the files that are still there, sorted by path."""
        found = {}
        for path in sorted(paths):
            try:
                state = os.lstat(path)
            except FileNotFoundError:
                # sealed or removed meanwhile
                continue
            if not path.name.startswith("."):
                found[self._name(path)] = FileState(state.st_size, state.st_mtime_ns)
        return found

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._run.root))
