"""A sink of the tests: it keeps what it is told, fails or blocks at given steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from agentrl.metrics.timing import PhaseTimes


class RecordedSink:
    """Keeps steps.

    Args:
        error: what it raises.
        fails_at: steps at which it does.
        held: what a step waits for.
    """

    def __init__(
        self,
        error: BaseException | None = None,
        fails_at: Collection[int] = (),
        held: threading.Event | None = None,
    ) -> None:
        self._error = error
        self._fails_at = fails_at
        self._held = held
        self.kept: list[int] = []
        self.times: list[list[PhaseTimes]] = []
        self.threads: set[str] = set()
        self.began = threading.Event()
        self.closed: bool | None = None

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        prefix: str = "",
        times: Sequence[PhaseTimes] = (),
    ) -> None:
        """Keeps the step, or raises."""
        self.times.append([*times])
        self.threads.add(threading.current_thread().name)
        self.began.set()
        if self._held is not None:
            self._held.wait()
        if self._error is not None and step in self._fails_at:
            raise self._error
        self.kept.append(step)

    def close(self, *, failed: bool = False) -> None:
        """Keeps whether the run failed."""
        self.closed = failed


def opener(sink: RecordedSink) -> Callable[[], RecordedSink]:
    """What opens it."""
    return lambda: sink
