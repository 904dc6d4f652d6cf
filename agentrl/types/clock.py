"""Pausable clock: seconds that do not count while the machine, and not their holder, causes a wait.

- ``PausableClock`` measures seconds; an engine's is stopped while the engine is paused.
- ``timeout()`` is a deadline on an event loop that counts in such a clock's seconds.
- ``counted_by`` and ``clock_paused`` connect the two ends of a wait by context variable: a sandbox
  pool stops every clock of the caller that waits for its turn, and knows none of them.

The standard library alone: the sandbox package imports this module.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self


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
        self._ended = seconds is None  # no deadline: there is nothing to stop

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
        except RuntimeError:  # a thread without a loop
            here = None
        if here is self._loop:
            self._add(stops)
        elif not self._ended:
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


_CLOCKS: ContextVar[tuple[PausableTimeout, ...]] = ContextVar("agentrl_clocks", default=())


@contextmanager
def counted_by(clock: PausableTimeout) -> Iterator[None]:
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
