"""File listing: which trajectory files, notes and ledger a run has, looked at cheaply and often."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentrl.store import RunDirectory

_WHOLE_EVERY = 10
_NEWEST_STEPS = 16
_SETTLED_S = 2.0
"""After this long, a folder whose time of change does not move has no newer names: times are kept
coarsely.
"""


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
    """Lists a run's files; a folder that did not change is not listed again.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._known: dict[str, tuple[int, dict[str, FileState]]] = {}
        # one look in _WHOLE_EVERY asks every folder of a step, the others the newest alone
        self._looks = 0
        self._live_before: Set[str] = frozenset()

    def snapshot(self) -> Snapshot:
        """The files now.

        Raises:
            OSError: a folder cannot be read.
        """
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        live = dict(self._live())
        sealed_some = not self._live_before <= live.keys()
        self._live_before = live.keys()
        sealed = self._sealed(everywhere=sealed_some)
        notes = dict(self._entries(str(self._run.root / "notes"), ".jsonl"))
        try:
            state = self._run.ledger_path.lstat()
        except FileNotFoundError:
            ledger = None
        else:
            ledger = FileState(state.st_size, state.st_mtime_ns)
        return Snapshot(live, sealed, notes, ledger)

    def _sealed(self, *, everywhere: bool) -> Files:
        """The shards. A folder is asked for its time of change, which a rename into it moves; that
        of an older step, which is hardly ever written again, at one look of several.
        """
        steps = self._steps(self._run.sealed_folder)
        # A hundred thousand trajectories lie in a thousand folders, which is a thousand calls a
        # look.
        whole = everywhere or self._looks % _WHOLE_EVERY == 0
        self._looks += 1
        found: dict[str, FileState] = {}
        for step in steps if whole else steps[-_NEWEST_STEPS:]:
            try:
                modified = os.stat(step).st_mtime_ns
            except FileNotFoundError:
                self._known.pop(step, None)
                continue
            if step not in self._known or self._known[step][0] != modified:
                own = dict(self._entries(step, ".parquet"))
                settled = time.time_ns() - modified > _SETTLED_S * 1e9
                self._known[step] = (modified if settled else 0, own)
        for step in steps:
            if step not in self._known:
                self._known[step] = (0, dict(self._entries(step, ".parquet")))
            found |= self._known[step][1]
        return found

    def _live(self) -> Iterator[tuple[str, FileState]]:
        for step in self._steps(self._run.live_folder):
            yield from self._entries(step, ".jsonl")

    def _steps(self, folder: Path) -> list[str]:
        try:
            return sorted(f"{folder}/{name}" for name in os.listdir(folder) if "step=" in name)
        except FileNotFoundError:
            return []

    def _entries(self, folder: str, suffix: str) -> Iterator[tuple[str, FileState]]:
        try:
            with os.scandir(folder) as entries:
                found = sorted(
                    (entry for entry in entries if entry.name.endswith(suffix)),
                    key=lambda entry: entry.name,
                )
        except (FileNotFoundError, NotADirectoryError):
            # sealed or removed meanwhile
            return
        for entry in found:
            try:
                state = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not entry.name.startswith("."):
                path = str(Path(entry.path).relative_to(self._run.root))
                yield path, FileState(state.st_size, state.st_mtime_ns)
