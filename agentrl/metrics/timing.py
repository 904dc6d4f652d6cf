"""Timing: sums wall-clock seconds by phase."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from agentrl.types.clock import EpochClock


class PhaseTimes(NamedTuple):
    """When something lasted.

    Args:
        name: of a phase of the loop, or what a rank did, such as ``actor.update``.
        began, ended: seconds since the epoch.
        process: the rank, by name; empty for the loop.
    """

    name: str
    began: float
    ended: float
    process: str = ""


class PhaseTimer:
    """Sums wall-clock seconds by phase; its methods may be called from any thread.

    Phases may overlap or nest. Each counts its whole time, so their sum may exceed the step's.

    Args:
        clock: monotonic seconds.

    Attributes:
        told: is told when each step, then each phase in it, and then what ranks did in it, began
            and ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.told: Callable[[list[PhaseTimes]], None] = lambda times: None
        self._began = clock()
        # Guards what follows: the training loop and the collector's thread update it.
        self._lock = threading.Lock()
        self._phases: list[tuple[str, float, float]] = []
        self._ranks: list[PhaseTimes] = []
        self._total: defaultdict[str, float] = defaultdict(float)
        self._step: defaultdict[str, float] = defaultdict(float)
        # of phases that last; single operations alone
        self._open: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's seconds, also if it raises."""
        self._open[name] = started = self._clock()
        try:
            yield
        finally:
            self._open.pop(name, None)
            ended = self._clock()
            self.add(name, ended - started)
            with self._lock:
                self._phases.append((name, started, ended))

    def now(self) -> list[dict[str, Any]]:
        """The phases that last, the outer ones first, with the seconds so far, as JSON."""
        now = self._clock()
        return [
            {"phase": name, "s": now - start} for name, start in list(self._open.items())
        ]

    def add(self, name: str, seconds: float) -> None:
        """Adds seconds that were measured elsewhere."""
        with self._lock:
            self._total[name] += seconds
            self._step[name] += seconds

    def put_ranks(self, times: Iterable[PhaseTimes]) -> None:
        """What ranks did in this step."""
        self._ranks += times

    def take_step(self) -> dict[str, float]:
        """``time/{phase}_s`` since the last call, which starts the next step."""
        with self._lock:
            seconds = {f"time/{name}_s": own for name, own in self._step.items()}
            self._step.clear()
            phases, self._phases = self._phases, []
        ranks, self._ranks = self._ranks, []
        began, self._began = self._began, self._clock()
        at = EpochClock().at
        phases.insert(0, ("step", began, self._began))
        self.told([*(PhaseTimes(name, at(a), at(b)) for name, a, b in phases), *ranks])
        return seconds

    def total(self) -> dict[str, float]:
        """Seconds by phase since the start, as in ``summary.json``."""
        with self._lock:
            return dict(self._total)


class IdleClock:
    """Measures by the wall clock how long something was idle; its owner calls it under a lock.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._since = clock()
        self._idle = True
        self._idle_s = 0.0

    def set_idle(self, idle: bool) -> None:
        """From now on it is idle, or goes on."""
        now = self._clock()
        if self._idle:
            self._idle_s += now - self._since
        self._since = now
        self._idle = idle

    def take(self) -> tuple[float, float]:
        """Seconds since the last call, and the share of them in which it was idle."""
        self.set_idle(self._idle)
        seconds = self._since - self._begun
        share = self._idle_s / seconds if seconds > 0 else 0.0
        self._begun = self._since
        self._idle_s = 0.0
        return seconds, share


class RolloutRates(IdleClock):
    """Measures what the rollouts gave, and how long they were idle."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._tokens = 0

    def add(self, tokens: int) -> None:
        """So many tokens were sampled by episodes that ended."""
        self._tokens += tokens

    def take_metrics(self) -> dict[str, float]:
        """The metrics since the last call."""
        seconds, share = self.take()
        tokens, self._tokens = self._tokens, 0
        return {
            "perf/rollout_tokens_per_s": tokens_per_s(tokens, seconds),
            "time/idle_frac": share,
        }


def tokens_per_s(tokens: float, seconds: float) -> float:
    """Tokens a second; 0 if no time was measured."""
    return tokens / seconds if seconds > 0 else 0.0
