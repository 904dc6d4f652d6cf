"""Deadlines: truncate an episode or turn that takes too long.

- A deadline that the policy spends truncates the episode; it does not fail it.
- Time in which the host's engine is paused, or in which others hold a sandbox, does not count.
- A straggler is cancelled by the same means, once enough rollouts of its group have finished.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType

from agentrl.sandbox import counted_by

__all__ = ["Deadlines", "LimitSpentError", "StragglerCancel", "within"]


class LimitSpentError(Exception):
    """A deadline of the episode or turn has passed; its text is the reason of the truncation."""


class Deadlines:
    """All deadlines of one host's episodes, which are paused together with its engine."""

    def __init__(self) -> None:
        self._clocks: set[_ScopeClock] = set()
        self._stopped = False
        self._lock = threading.Lock()

    @contextmanager
    def of_this_task(self) -> Iterator[None]:
        """Adds the deadlines that start in this context, and in tasks created in it."""
        token = _DEADLINES.set(self)
        try:
            yield
        finally:
            _DEADLINES.reset(token)

    @contextmanager
    def clock_paused(self) -> Iterator[None]:
        """Pauses all deadlines meanwhile; for one caller at a time, from any thread."""
        self._turn(stopped=True)
        try:
            yield
        finally:
            self._turn(stopped=False)

    def add(self, clock: _ScopeClock) -> None:
        """Adds a deadline that starts."""
        with self._lock:
            self._clocks.add(clock)
            if self._stopped:
                clock.stop()

    def drop(self, clock: _ScopeClock) -> None:
        """Removes a deadline that has ended."""
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


class StragglerCancel:
    """Cancels an episode after enough other rollouts of its group have finished.

    All methods are called in the episode's event loop.
    """

    reason = "straggler"

    def __init__(self) -> None:
        self.requested = False
        self._clock: _ScopeClock | None = None

    def request(self) -> None:
        """Ends the episode at its next wait or at its start; one that has been played is still
        scored.
        """
        self.requested = True
        if self._clock is not None:
            self._clock.spend()

    def hold(self, clock: _ScopeClock) -> None:
        """Takes the clock of the episode's deadline, which ``request`` spends."""
        self._clock = clock
        if self.requested:
            clock.spend()


def within(
    seconds: float, reason: str, straggler: StragglerCancel | None = None
) -> AbstractAsyncContextManager[None]:
    """Ends its block after ``seconds``.

    Waits for a sandbox that others use do not count, nor does time in which the engine is paused.

    Args:
        seconds: the time limit.
        reason: the text of the error.
        straggler: may end the block earlier.

    Raises:
        LimitSpentError: the time is up; its text is ``reason``, or the straggler's reason.
    """
    return _Within(seconds, reason, straggler)


class _Within:
    """See ``within``; a class for speed, because each turn in flight holds two."""

    __slots__ = ("_clock", "_counted", "_host", "_reason", "_scope", "_straggler")

    def __init__(self, seconds: float, reason: str, straggler: StragglerCancel | None) -> None:
        self._scope = asyncio.timeout(seconds)
        self._reason = reason
        self._straggler = straggler
        self._host = _DEADLINES.get()

    async def __aenter__(self) -> None:
        self._clock = _ScopeClock(self._scope)
        self._counted = counted_by(self._clock)
        await self._scope.__aenter__()
        if self._host is not None:
            self._host.add(self._clock)
        if self._straggler is not None:
            self._straggler.hold(self._clock)
        self._counted.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._counted.__exit__(kind, error, trace)
        try:
            await self._scope.__aexit__(kind, error, trace)
            timed_out = isinstance(error, TimeoutError)
        except TimeoutError:
            timed_out = True
        finally:
            self._clock.end()
            if self._host is not None:
                self._host.drop(self._clock)
        if timed_out and self._scope.expired():
            straggler = self._straggler
            if straggler is not None and straggler.requested:
                raise LimitSpentError(straggler.reason) from None
            raise LimitSpentError(self._reason) from None


class _ScopeClock:
    """A timeout that can be stopped (a ``Clock``), also by what outlives it, which then changes
    nothing.
    """

    __slots__ = ("_ended", "_left_s", "_loop", "_scope", "_stops")

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
