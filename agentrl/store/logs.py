"""Logs: a run's events and the records of the package's loggers, one JSON object a line.

- Each process of a run writes a file of its own, ``logs/NAME.jsonl``.
- INFO and above are kept; what was passed as ``extra`` stands beside the message.
- A record that cannot be written is reported once on standard error; logging never ends a run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from agentrl.errors import AgentRLError, StoreError
from agentrl.store.jsonl import JsonlWriter
from agentrl.store.masking import SecretMask
from agentrl.store.run_directory import RunDirectory
from agentrl.types import Trajectory

EventLevel = Literal["info", "warning", "error"]

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "time": (int, float),
    "level": str,
    "event": str,
    "boundary": str,
    "message": str,
    "step": (int, NoneType),
    "stage": (str, NoneType),
}


def event_fault(record: Mapping[str, Any]) -> str:
    """Why a line of ``events.jsonl`` is no event; empty where it is one."""
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            return f"the {name} of an event cannot be {record[name]!r:.100}"
    return ""


class EventLog(JsonlWriter):
    """Alerts, retries and failures, each named for the boundary it crossed; safe to use from
    several threads.

    Args:
        run: whose ``events.jsonl`` is appended to.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, run: RunDirectory) -> None:
        super().__init__(run.events_path, mask=SecretMask())

    def log(
        self, event: str, message: str, *, boundary: str, level: EventLevel = "info", **fields: Any
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
        self.append({**fields, **head})

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
