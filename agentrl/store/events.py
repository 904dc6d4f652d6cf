"""Event log: ``events.jsonl``, one line for each event that a person should know of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal

from agentrl.errors import AgentRLError
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
