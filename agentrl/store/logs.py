"""Logs: a run's events and the records of the package's loggers, one JSON object a line.

- Each process of a run writes a file of its own, ``logs/NAME.jsonl``.
- INFO and above are kept; what was passed as ``extra`` stands beside the message.
- A record that cannot be written is reported once on standard error; logging never ends a run.
- Where a call takes long, its process leaves its stacks beside its log, in ``logs/NAME.stacks``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import IO, Any, Literal, TypeVar

from agentrl.errors import AgentRLError, StoreError
from agentrl.guards.secret_mask import SecretMask
from agentrl.store.disk import os_refusals
from agentrl.store.jsonl import JsonlWriter
from agentrl.store.run_directory import RunDirectory
from agentrl.types import Trajectory
from agentrl.types.user_code.values import shown

T = TypeVar("T")

EventLevel = Literal["info", "warning", "error"]

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "time": (int, float),
    "level": str,
    "event": str,
    "boundary": str,
    "message": str,
    "step": (int, NoneType),
    "stage": (str, NoneType),
    "blame": (str, NoneType),
    "query": (str, NoneType),
    "trajectory": (str, NoneType),
    "trajectories": (list, NoneType),
}
"""Of the fields that readers of events look at."""


def event_fault(record: Mapping[str, Any]) -> str:
    """Why a line of ``events.jsonl`` is no event; empty where it is one."""
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            return f"the {name} of an event cannot be {shown(record[name], 100)}"
    named = record.get("trajectories") or ()
    if not all(isinstance(one, str) for one in named):
        return f"the trajectories of an event cannot be {shown(named, 100)}"
    return ""


class EventLog(JsonlWriter):
    """Alerts, retries and failures, each named for the boundary it crossed; safe to use from
    several threads.

    Args:
        run: whose ``events.jsonl`` is appended to.
        told: is told each event too, before it is written; from any thread.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(
        self, run: RunDirectory, told: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        super().__init__(run.events_path, mask=SecretMask())
        self._told = told

    def log(
        self,
        event: str,
        message: str,
        *,
        boundary: str,
        level: EventLevel = "info",
        **fields: Any,
    ) -> None:
        """Write one event.

        Args:
            event: its name, such as ``engine_retry``.
            message: what happened and what to do, for a person.
            boundary: where, as in ``agentrl.errors``: config, data, env, tool, sandbox, engine,
                reward, store, ...
            level: ``warning`` for what went on all the same, ``error`` for what did not.
            fields: JSON to go with it, such as ``step=3``.

        Raises:
            StoreError: the line cannot be written.
        """
        head = {
            "time": time.time(),
            "level": level,
            "event": event,
            "boundary": boundary,
            "message": message,
        }
        # A field of the caller's never takes the place of the event's own.
        record = {**fields, **head}
        if self._told:
            self._told(record)
        self.append(record)

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """Write an error, under the boundary that it names.

        Raises:
            StoreError: the line cannot be written.
        """
        boundary = error.boundary if isinstance(error, AgentRLError) else "agentrl"
        self.log(
            event,
            str(error),
            boundary=boundary,
            level="error",
            error=type(error).__name__,
            **fields,
        )

    def trajectory_failed(self, trajectory: Trajectory, **fields: Any) -> None:
        """Write why an episode failed, under the boundary at which it did.

        Raises:
            StoreError: the line cannot be written.
        """
        self.log(
            "trajectory_failed",
            trajectory.failure,
            boundary=trajectory.status.reason,
            level="warning",
            trajectory=trajectory.id,
            **fields,
        )


_PACKAGE = "agentrl"
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
"""Attributes that every record has; the others were passed as ``extra``."""


class LogFile(logging.Handler):
    """Appends records to a file of JSON lines.

    Args:
        path: the file; its folder is made.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._lines = JsonlWriter(path, mask=SecretMask())
        self._host = socket.gethostname()
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record; called under the handler's own lock, from any thread."""
        try:
            self._lines.append(self._fields(record))
        except StoreError as error:
            if not self._failed:
                self._failed = True
                sys.stderr.write(f"the log is incomplete from here on: {error}\n")

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._lines.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        # a name that begins with _ is another library's, such as Ray's own time
        extra = {
            name: value
            for name, value in record.__dict__.items()
            if name not in _OWN and not name.startswith("_")
        }
        fields = {
            **extra,
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "host": self._host,
            "pid": os.getpid(),
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        return fields


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Keeps the package's records of this process in ``path`` until the block ends.

    Raises:
        StoreError: the file cannot be opened.
    """
    logger = logging.getLogger(_PACKAGE)
    handler = LogFile(path)
    level = logger.level
    logger.addHandler(handler)
    # A logger passes warnings and errors alone by default.
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


SLOW_S = 60.0
"""A call that takes longer is logged, once, and leaves the stacks of its process."""
_FRAME = re.compile(r'File "(?:.*/)?(.+)", line (\d+) in (.+)')
_RUN = 'agentrl/store/logs.py", line'
"""In a thread's stack: it runs a call of ours."""


class StackFile:
    """Leaves the stacks of all threads in a file, again and again while a call takes longer than a
    limit; they stay until the next call. The interpreter's own watchdog does it, so that code is
    seen too that never lets Python run. There is one in a process.

    Args:
        path: the file; None watches nothing.
        after_s: the limit, and between two looks.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path | None, after_s: float = SLOW_S) -> None:
        self._after_s = after_s
        self._file: IO[bytes] | None = None
        if path is not None:
            with os_refusals(f"{path} cannot be opened"):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
        # the calls in their order, of which the first is timed; guarded by the lock
        self._calls: list[object] = []
        self._lock = threading.Lock()

    def run(self, call: Callable[..., T], *args: Any, **keywords: Any) -> T:
        """What a call gives; from any thread."""
        own = object()
        self._change(lambda: self._calls.append(own))
        try:
            return call(*args, **keywords)
        finally:
            self._change(lambda: self._calls.remove(own))

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            before = self._calls[:1]
            change()
            if self._file is None or self._calls[:1] == before:
                return
            faulthandler.cancel_dump_traceback_later()
            if self._calls:
                if self._file.tell():  # of a call that has ended
                    self._file.truncate(0)
                faulthandler.dump_traceback_later(
                    self._after_s, repeat=True, file=self._file
                )


def stack_in(path: Path) -> str:
    """Where the call was when it was looked at last, as ``innermost (file.py:12) < caller (...)``;
    empty where nothing was left."""
    try:
        dump = path.read_text(errors="replace").rpartition("Timeout (")[2]
    except OSError:
        return ""
    threads = [_FRAME.findall(text) for text in dump.split("\n\n") if _RUN in text]
    # a worker's polls come and go beside the call that is waited for
    threads.sort(key=lambda frames: any("poll" in frame for frame in frames))
    frames = threads[0][:4] if threads else ()
    return " < ".join(f"{name} ({file}:{line})" for file, line, name in frames)
