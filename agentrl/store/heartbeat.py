"""Heartbeat: ``heartbeat.json``, by which others see that a run lives, and ``now.json``, by which
they see what it does."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from agentrl.errors import StoreError
from agentrl.guards.regular_file import read_regular
from agentrl.store.disk import write_bytes
from agentrl.store.json_text import to_json
from agentrl.store.jsonl import parse_line
from agentrl.store.run_directory import RunDirectory

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
NOW_PERIOD_S = 1.0
_MISSED = 3
_JOIN_S = 10.0

RunStateKind = Literal["alive", "finished", "stopped"]


class Heartbeat:
    """Writes a growing counter beside the run, every ``period_s`` seconds, until its end, and each
    second what its parts do.

    Two threads write the files, since a part may hold its own up; they start with the block and end
    with it. What cannot be written is told in the log, once, and ends no run.

    Args:
        run: the run.
        period_s: seconds between two beats.

    Attributes:
        parts: of the run, by name: each tells what it does at the moment, as JSON, and is asked by
            a thread of its own.
    """

    def __init__(self, run: RunDirectory, *, period_s: float = PERIOD_S) -> None:
        self.parts: dict[str, Callable[[], Any]] = {}
        self._run = run
        self._period_s = period_s
        # It goes on from an earlier attempt's, so that whoever watches sees it move.
        self._counter = int((read_heartbeat(run) or {}).get("counter", 0))
        # what could not be written at the last try
        self._failed: set[Path] = set()
        self._ended = threading.Event()
        # guards stage and step: the run sets them, the thread writes them
        self._lock = threading.Lock()
        self._stage = ""
        self._step = 0
        # a daemon, so that a stuck disk holds up no exit
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
        self._now = threading.Thread(target=self._tell_on, name="now", daemon=True)

    def reach(self, stage: str, step: int) -> None:
        """The run has come to a step of a stage; the next beat says so."""
        with self._lock:
            self._stage = stage
            self._step = step

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """The same as a sink of metrics."""
        del values
        self.reach(prefix, step)

    def close(self, *, failed: bool = False) -> None:
        """As a sink of metrics: nothing, since the heart beats until the block's end."""

    def __enter__(self) -> Self:
        self._write("")
        self._thread.start()
        self._now.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended.set()
        self._now.join(_JOIN_S)
        self._thread.join(_JOIN_S)
        # A thread that hangs in a write could still put its beat over the run's end.
        if not self._thread.is_alive():
            self._write("finished" if error is None else "stopped")

    def _beat_on(self) -> None:
        while not self._ended.wait(self._period_s):
            self._write("")

    def _tell_on(self) -> None:
        while not self._ended.wait(NOW_PERIOD_S):
            now: dict[str, Any] = {"time": time.time()}
            for name, part in list(self.parts.items()):
                try:
                    now[name] = part()
                except Exception as error:  # noqa: BLE001 - boundary: a part may just be ending
                    now[name] = {"failed": repr(error)}
            self._put(self._run.now_path, now, "agentrl top shows what it told before")

    def _write(self, end: Literal["", "finished", "stopped"]) -> None:
        self._counter += 1
        with self._lock:
            place = {"step": self._step, "stage": self._stage}
        beat = {
            "counter": self._counter,
            "time": time.time(),
            "pid": os.getpid(),
            "host": platform.node(),
            **place,
            "period_s": self._period_s,
            "end": end,
        }
        self._put(self._run.heartbeat_path, beat, "others see this run as stopped")

    def _put(self, path: Path, value: Mapping[str, Any], otherwise: str) -> None:
        try:
            # no sync: after a power failure nobody asks what a run did before
            write_bytes(path, to_json(value).encode(), durable=False)
        except StoreError as error:
            if path not in self._failed:
                told = {"event": "heartbeat_failed", "why": str(error)}
                logger.warning("%s; %s", error, otherwise, extra=told)
            self._failed.add(path)
        else:
            self._failed.discard(path)


_BEAT: Mapping[str, type | tuple[type, ...]] = {
    "counter": int,
    "time": (int, float),
    "pid": int,
    "host": str,
    "step": int,
    "stage": str,
    "period_s": (int, float),
    "end": str,
}


def read_heartbeat(run: RunDirectory) -> dict[str, Any] | None:
    """The last beat; None where the run has none that can be read."""
    beat = read_told(run.heartbeat_path) or {}
    is_beat = all(isinstance(beat.get(name), kind) for name, kind in _BEAT.items())
    return beat if is_beat else None


def read_told(path: Path) -> dict[str, Any] | None:
    """What a run told of itself last, by a beat or its parts; None where nothing can be read."""
    try:
        return parse_line(str(path), read_regular(path))
    except (OSError, StoreError):
        return None


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run does now.

    Args:
        kind: ``alive``: it runs; ``finished``: it came to its end; ``stopped``: it was ended
            before, and can be resumed.
        heartbeat: its last beat; None where it never had one.
    """

    kind: RunStateKind
    heartbeat: Mapping[str, Any] | None = None


class RunWatch:
    """Looks at a run's state again and again.

    A run is alive when its counter moved between two looks, or when its last beat is younger than
    three periods. A clock that goes back, or two machines whose clocks differ, thus hide a living
    run for no longer than the time between two beats.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._counter: int | None = None
        # by the monotonic clock
        self._moved = -float("inf")

    def look(self) -> RunState:
        """The state now."""
        beat = read_heartbeat(self._run)
        if beat is None:
            finished = self._run.summary_path.is_file()
            return RunState("finished" if finished else "stopped")
        now = time.monotonic()
        counter = beat["counter"]
        if self._counter is not None and counter != self._counter:
            self._moved = now
        self._counter = counter
        if beat["end"]:
            return RunState("finished" if beat["end"] == "finished" else "stopped", beat)
        patience_s = _MISSED * beat["period_s"]
        alive = now - self._moved <= patience_s or abs(self._age_s()) <= patience_s
        return RunState("alive" if alive else "stopped", beat)

    def _age_s(self) -> float:
        """Of the last beat, by this machine's clock and the file system's."""
        try:
            return time.time() - self._run.heartbeat_path.stat().st_mtime
        except OSError:
            return float("inf")
