"""Deadlines that the policy can spend, and one that its siblings spend: such an episode is truncated, not failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from agentrl.sandbox import counted_by

__all__ = ["Cut", "Deadlines", "LimitSpentError", "within"]


class LimitSpentError(Exception):
    """A deadline of the episode or turn is spent: the policy's doing, so the episode is truncated. Says the reason."""


class Deadlines:
    """All deadlines of one host's episodes: they stand still together while its engine is paused."""

    def __init__(self) -> None:
        self._clocks: set[_ScopeClock] = set()
        self._stopped = False
        self._lock = threading.Lock()

    @contextmanager
    def of_this_task(self) -> Iterator[None]:
        """Deadlines that begin within, and in the tasks started there, are among these."""
        token = _DEADLINES.set(self)
        try:
            yield
        finally:
            _DEADLINES.reset(token)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """None of them counts meanwhile; for one caller at a time, from any thread."""
        self._turn(stopped=True)
        try:
            yield
        finally:
            self._turn(stopped=False)

    def add(self, clock: _ScopeClock) -> None:
        """A deadline begins."""
        with self._lock:
            self._clocks.add(clock)
            if self._stopped:
                clock.stop()

    def drop(self, clock: _ScopeClock) -> None:
        """A deadline is over."""
        with self._lock:
            self._clocks.discard(clock)

    def _turn(self, *, stopped: bool) -> None:
        with self._lock:
            self._stopped = stopped
            for clock in self._clocks:
                if stopped:
                    clock.stop()
                else:
                    clock.go_on()


_DEADLINES: ContextVar[Deadlines | None] = ContextVar("agentrl_deadlines", default=None)


class Cut:
    """Ends an episode from outside, whose siblings have finished; used in the episode's own loop."""

    reason = "straggler"

    def __init__(self) -> None:
        self.asked = False
        self._clock: _ScopeClock | None = None

    def ask(self) -> None:
        """Ends the episode at its next wait, or as soon as it begins to play; one that has been played goes on."""
        self.asked = True
        if self._clock is not None:
            self._clock.spend()

    def hold(self, clock: _ScopeClock) -> None:
        """What is to be spent."""
        self._clock = clock
        if self.asked:
            clock.spend()


@asynccontextmanager
async def within(seconds: float, reason: str, cut: Cut | None = None) -> AsyncIterator[None]:
    """Ends what it holds after ``seconds``, in which waits for a sandbox that others use do not count, nor the time in
    which the host's engine is paused.

    Args:
        seconds: of the holder's own.
        reason: what is said when they are spent.
        cut: ends it before.

    Raises:
        LimitSpentError: the time is up; its text is ``reason``, or the cut's.
    """
    scope = asyncio.timeout(seconds)
    clock, host = _ScopeClock(scope), _DEADLINES.get()
    try:
        async with scope:
            if host is not None:
                host.add(clock)
            if cut is not None:
                cut.hold(clock)
            with counted_by(clock):
                yield
    except TimeoutError:
        if scope.expired():
            raise LimitSpentError(cut.reason if cut is not None and cut.asked else reason) from None
        raise
    finally:
        clock.end()
        if host is not None:
            host.drop(clock)


class _ScopeClock:
    """A timeout that can be stopped (a ``Clock``), also by what outlives it, which then changes nothing."""

    def __init__(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._stops = 0
        self._left_s = 0.0
        self._ended = False

    def stop(self) -> None:
        self._on_loop(self._stop)

    def go_on(self) -> None:
        self._on_loop(self._go_on)

    def end(self) -> None:
        self._ended = True

    def spend(self) -> None:
        """The time is up now, whatever was left of it."""
        if not self._over:
            self._ended = True
            self._scope.reschedule(self._loop.time())

    def _on_loop(self, change: Callable[[], None]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop
            here = None
        if here is self._loop:
            change()
        elif not self._ended:
            self._loop.call_soon_threadsafe(change)

    def _stop(self) -> None:
        self._stops += 1
        when = self._scope.when()
        if self._stops == 1 and when is not None and not self._over:
            self._left_s = when - self._loop.time()
            self._scope.reschedule(None)

    def _go_on(self) -> None:
        self._stops -= 1
        if self._stops == 0 and not self._over:
            self._scope.reschedule(self._loop.time() + self._left_s)

    @property
    def _over(self) -> bool:
        return self._ended or self._scope.expired()
