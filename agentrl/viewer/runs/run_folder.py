"""Run folder: the runs that a viewer shows, each by a key that a request may name."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from pathlib import Path
from time import monotonic

from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.viewer_error import not_found

logger = logging.getLogger(__name__)

_DEEPEST = 8
_MOST_FOLDERS = 20_000
_LOOK_AGAIN_S = 2.0
_SHARE = 0.1
"""Of the time, at most, that looks at many folders take."""
_MOST_IN_MEMORY = 4
_IDLE_S = 60.0


class RunFolder:
    """One run, or every run up to eight folders below one; safe to use from several threads.

    Args:
        source: a run directory, or a folder above some.

    Raises:
        StoreError: there is no run.
    """

    def __init__(self, source: Path) -> None:
        self.source = source.resolve()
        # guards all below; an OpenRun has a lock of its own
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._open: dict[str, OpenRun] = {}
        self._look_again_at = 0.0
        self._told = ""
        self._look()
        if not self._paths:
            self._refuse(source)

    @property
    def is_one_run(self) -> bool:
        """Whether the source itself is a run."""
        return self._paths.get(run_key(self.source)) == self.source

    def first_page(self) -> str:
        """The fragment of the page that opens first: the overview of one run, or the list."""
        return f"#/run/{run_key(self.source)}" if self.is_one_run else ""

    def runs(self) -> list[OpenRun]:
        """Every run, also those that began since the last call."""
        with self._lock:
            if monotonic() > self._look_again_at:
                self._look()
            return [self._opened(key) for key in self._paths]

    def get(self, key: str) -> OpenRun:
        """The run of a key.

        Raises:
            ViewerError: there is none, or it was moved away since.
        """
        with self._lock:
            if key not in self._paths:
                self._look()
            if key not in self._paths:
                raise not_found(
                    f"this viewer shows no run {key[:40]!r}; /api/runs lists its own"
                )
            run = self._opened(key)
            run.used_at = monotonic()
            idle = self._idle()
        # Outside the lock: to close an index may wait for a search in it.
        for other in idle:
            other.close()
        if not run.directory.record_path.is_file():
            raise not_found(
                f"the run {run.name} is no longer at {run.directory.root}: it was moved or deleted "
                "while the viewer showed it; start `agentrl view` where it is now"
            )
        return run

    def close(self) -> None:
        """Ends what the runs hold open."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _opened(self, key: str) -> OpenRun:
        if key not in self._open:
            path = self._paths[key]
            inside = path != self.source and path.is_relative_to(self.source)
            name = str(path.relative_to(self.source)) if inside else path.name
            self._open[key] = OpenRun(RunDirectory(path), key, name)
        return self._open[key]

    def _idle(self) -> list[OpenRun]:
        """Runs that nobody looks at any more, beyond those that may stay in memory."""
        newest = sorted(self._open.values(), key=lambda run: run.used_at, reverse=True)
        before = monotonic() - _IDLE_S
        return [run for run in newest[_MOST_IN_MEMORY:] if 0 < run.used_at < before]

    def _look(self) -> None:
        began = monotonic()
        found, left_out = _runs_below(self.source)
        ended = monotonic()
        self._look_again_at = ended + max(_LOOK_AGAIN_S, (ended - began) / _SHARE)
        # a run that was moved keeps its key: its pages then say so
        self._paths |= {run_key(path): path for path in found}
        if left_out and left_out != self._told:
            self._told = left_out
            told = {"event": "runs_left_out", "folder": str(self.source), "why": left_out}
            logger.warning(
                "%s: %s; name one nearer to them", self.source, left_out, extra=told
            )

    def _refuse(self, source: Path) -> None:
        if not self.source.is_dir():
            what = "is no folder" if self.source.exists() else "does not exist"
            raise StoreError(
                f"'{source}' {what}; name a run directory, or a folder of runs"
            )
        raise StoreError(
            f"'{source}' is no run directory, and no folder below it is one (none has a run.json); "
            "name the run.dir of a run, or a folder above some"
        )


def run_key(path: Path) -> str:
    """The key of the run in a folder: the same in every viewer of this machine."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _runs_below(root: Path) -> tuple[list[Path], str]:
    """Folders with a ``run.json``, the nearest first, never one within another; and which are left
    out, empty where none can be.
    """
    found = []
    level = [root]
    seen = 0
    for _ in range(_DEEPEST + 1):
        below: list[Path] = []
        for folder in level:
            if RunDirectory(folder).record_path.is_file():
                found.append(folder)
                continue
            seen += 1
            if seen > _MOST_FOLDERS:
                return (
                    found,
                    f"runs beyond the nearest {_MOST_FOLDERS:,} folders are not listed",
                )
            below += _folders(folder)
        level = below
    deeper = f"runs that lie more than {_DEEPEST} folders below it are not listed"
    return found, deeper if level else ""


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(entry.path)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        # not ours to read: no run of it can be shown
        return []
