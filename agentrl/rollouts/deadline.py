"""Deadlines that the policy can spend, and one that its siblings spend: such an episode is truncated, not failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentrl.sandbox import counted_by

__all__ = ["Cut", "LimitSpentError", "within"]


class LimitSpentError(Exception):
    """A deadline of the episode or turn is spent: the policy's doing, so the episode is truncated. Says the reason."""


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
    """Ends what it holds after ``seconds``, in which waits for a sandbox that others use do not count.

    Args:
        seconds: of the holder's own.
        reason: what is said when they are spent.
        cut: ends it before.

    Raises:
        LimitSpentError: the time is up; its text is ``reason``, or the cut's.
    """
    scope = asyncio.timeout(seconds)
    clock = _ScopeClock(scope)
    try:
        async with scope:
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
