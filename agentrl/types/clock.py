"""Clocks: seconds that do not count while others cause a wait, and the time of day of an episode.

- ``PausableClock`` measures seconds; an engine's is stopped while the engine is paused.
- ``timeout()`` is a deadline on an event loop that counts in such a clock's seconds.
- ``counted_by`` and ``clock_paused`` connect the two ends of a wait by context variable: a sandbox
  pool stops every clock of the caller that waits for its turn, and knows none of them.
- ``WaitClock`` is told of the same waits, and remembers them.
- ``EpochClock`` gives times of day that never go back.
- ``backoff_s`` says how long to wait before something that failed is tried again.

The standard library alone: the sandbox package imports this module.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, Self


class PausableClock:
    """Seconds during which it was not stopped. Usable from any thread; stops nest."""

    def __init__(self) -> None:
        # guards all fields: stop and go_on come from an engine's owner, timeouts from event loops
        self._lock = threading.Lock()
        self._stops = 0
        self._stopped_at = 0.0
        self._stopped_s = 0.0
        self._timeouts: set[PausableTimeout] = set()

    def stop(self) -> None:
        """Time stops, for every timeout that counts in it too."""
        with self._lock:
            self._stops += 1
            if self._stops == 1:
                self._stopped_at = time.monotonic()
                for timeout in self._timeouts:
                    timeout.stop()

    def go_on(self) -> None:
        """Time passes again, once every stop has its ``go_on``."""
        with self._lock:
            self._stops -= 1
            if self._stops == 0:
                self._stopped_s += time.monotonic() - self._stopped_at
                for timeout in self._timeouts:
                    timeout.go_on()

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        with self._lock:
            return (self._stopped_at if self._stops else time.monotonic()) - self._stopped_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped within."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    def attach(self, timeout: PausableTimeout) -> None:
        """A deadline begins to count in this clock."""
        with self._lock:
            self._timeouts.add(timeout)
            if self._stops:
                timeout.stop()

    def detach(self, timeout: PausableTimeout) -> None:
        """A deadline is over."""
        with self._lock:
            self._timeouts.discard(timeout)


class PausableTimeout:
    """``asyncio.timeout`` that can be stopped, also by what outlives it, which then changes
    nothing.

    Made and entered on the event loop that it counts for.

    Args:
        seconds: None sets no limit.
        clock: in whose seconds it counts; None counts real ones.
    """

    __slots__ = ("_clock", "_ended", "_left_s", "_loop", "_scope", "_stops")

    def __init__(self, seconds: float | None, clock: PausableClock | None = None) -> None:
        self._scope = asyncio.timeout(seconds)
        self._loop = asyncio.get_running_loop()
        self._clock = None if seconds is None else clock
        self._stops = 0
        self._left_s = 0.0
        # Without a deadline there is nothing to stop.
        self._ended = seconds is None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        if self._clock is not None:
            self._clock.attach(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises:
        TimeoutError: the time is up; ``expired`` tells it from one that came from within.
        """
        try:
            await self._scope.__aexit__(kind, error, trace)
        finally:
            self._ended = True
            if self._clock is not None:
                self._clock.detach(self)

    def expired(self) -> bool:
        """Whether the time was up, or ``spend`` was called."""
        return self._scope.expired()

    def stop(self) -> None:
        """The deadline moves away until ``go_on``; from any thread."""
        self._on_loop(1)

    def go_on(self) -> None:
        """What was left counts again; from any thread."""
        self._on_loop(-1)

    def spend(self) -> None:
        """The time is up now, whatever was left of it; from the loop alone."""
        if not self._over:
            self._ended = True
            self._scope.reschedule(self._loop.time())

    def _on_loop(self, stops: int) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            # This thread has no loop.
            here = None
        if here is self._loop:
            self._add(stops)
        elif not self._ended:
            # A loop's timers may be touched in its own thread alone.
            self._loop.call_soon_threadsafe(self._add, stops)

    def _add(self, stops: int) -> None:
        self._stops += stops
        if self._over:
            return
        when = self._scope.when()
        if self._stops and when is not None:
            self._left_s = when - self._loop.time()
            self._scope.reschedule(None)
        elif not self._stops:
            self._scope.reschedule(self._loop.time() + self._left_s)

    @property
    def _over(self) -> bool:
        return self._ended or self._scope.expired()


class Pausable(Protocol):
    """What is told of waits that others cause."""

    def stop(self) -> None:
        """A wait begins; waits nest."""

    def go_on(self) -> None:
        """A wait ends."""


class WaitClock:
    """Measures waits that others cause, such as for a sandbox; those at one time count once.

    Attributes:
        first_at: when the first one began, by ``time.monotonic``; None where there was none.
        wait_s: seconds of all.
    """

    __slots__ = ("_began", "_lock", "_stops", "first_at", "wait_s")

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.wait_s = 0.0
        self._stops = 0
        self._began = 0.0
        # guards all fields: tools of one turn may wait in several threads
        self._lock = threading.Lock()

    def stop(self) -> None:
        """See ``Pausable``."""
        with self._lock:
            self._stops += 1
            if self._stops == 1:
                self._began = time.monotonic()
                self.first_at = self._began if self.first_at is None else self.first_at

    def go_on(self) -> None:
        """See ``Pausable``."""
        with self._lock:
            self._stops -= 1
            if not self._stops:
                self.wait_s += time.monotonic() - self._began


class EpochClock:
    """Seconds since the epoch that never go back: the time of day once, then the monotonic clock.

    Usable from any thread.
    """

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def at(self, monotonic_s: float) -> float:
        """The time of day of a moment by ``time.monotonic``."""
        return self._offset_s + monotonic_s

    @contextmanager
    def of_this_task(self) -> Iterator[None]:
        """The clock of ``epoch_at`` in this context, and in tasks and threads started in it."""
        token = _EPOCH.set(self)
        try:
            yield
        finally:
            _EPOCH.reset(token)


_EPOCH: ContextVar[EpochClock] = ContextVar("agentrl_epoch", default=EpochClock())  # noqa: B039


def epoch_at(monotonic_s: float) -> float:
    """The time of day of a moment by ``time.monotonic``, by the episode's clock where there is
    one.
    """
    return _EPOCH.get().at(monotonic_s)


_CLOCKS: ContextVar[tuple[Pausable, ...]] = ContextVar("agentrl_clocks", default=())


@contextmanager
def counted_by(clock: Pausable) -> Iterator[None]:
    """``clock`` counts what runs within, and in tasks started there, apart from paused waits."""
    token = _CLOCKS.set((*_CLOCKS.get(), clock))
    try:
        yield
    finally:
        _CLOCKS.reset(token)


@contextmanager
def clock_paused() -> Iterator[None]:
    """No clock of the caller counts what happens within: it waits for something that others use."""
    clocks = _CLOCKS.get()
    for clock in clocks:
        clock.stop()
    try:
        yield
    finally:
        for clock in clocks:
            clock.go_on()


def backoff_s(attempt: int, *, first_s: float, longest_s: float) -> float:
    """Seconds before the next attempt: twice as long after each, and drawn from the upper half, so
    that many who failed together do not come back together.

    Args:
        attempt: that failed, from 0.
        first_s: longest wait after the first one.
        longest_s: longest wait of all.
    """
    # the exponent is bounded: an endless series of attempts would leave the range of floats
    longest = min(first_s * 2 ** min(attempt, 32), longest_s)
    return random.uniform(longest / 2, longest)
