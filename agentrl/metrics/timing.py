"""Seconds by phase."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["PhaseTimer", "tokens_per_s"]


class PhaseTimer:
    """Adds up wall-clock seconds by phase; safe to use from several threads.

    Phases may overlap or nest; each then counts its whole time, so that the sum may exceed the step's.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total: dict[str, float] = {}
        self._step: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's seconds, also when it raises."""
        started = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - started)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        with self._lock:
            self._total[name] = self._total.get(name, 0.0) + seconds
            self._step[name] = self._step.get(name, 0.0) + seconds

    def take_step(self) -> dict[str, float]:
        """``time/{phase}_s`` since the last call, which starts the next step."""
        with self._lock:
            step, self._step = self._step, {}
        return {f"time/{name}_s": seconds for name, seconds in step.items()}

    def total(self) -> dict[str, float]:
        """Seconds by phase since the start, as ``summary.json`` has them."""
        with self._lock:
            return dict(self._total)


def tokens_per_s(tokens: float, seconds: float) -> float:
    """A speed; 0 where no time was measured."""
    return tokens / seconds if seconds > 0 else 0.0
