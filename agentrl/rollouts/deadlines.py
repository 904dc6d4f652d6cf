"""Deadlines: truncate an episode or turn that takes too long.

- A deadline that the policy spends truncates the episode; it does not fail it.
- Time in which the engine is paused or has no server that serves, or in which others hold a sandbox
  or thread, does not count.
- A straggler is cancelled by the same means, once enough rollouts of its group have finished.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from agentrl.types.clock import PausableClock, PausableTimeout, counted_by


class LimitSpentError(Exception):
    """A deadline of the episode or turn has passed; its text is the reason of the truncation."""


class Deadlines(PausableClock):
    """Clock of all deadlines of one host's episodes, which is paused together with its engine."""

    @contextmanager
    def of_this_task(self) -> Iterator[None]:
        """Adds the deadlines that start in this context, and in tasks created in it."""
        token = _DEADLINES.set(self)
        try:
            yield
        finally:
            _DEADLINES.reset(token)


_DEADLINES: ContextVar[Deadlines | None] = ContextVar("agentrl_deadlines", default=None)


def counted_now() -> float:
    """Seconds since an arbitrary moment, without those in which the engine was paused."""
    clock = _DEADLINES.get()
    return time.monotonic() if clock is None else clock.now()


class StragglerCancel:
    """Cancels the episodes of a group that go on after enough others of it have finished.

    All methods are called in the episodes' event loop.
    """

    reason = "straggler"

    def __init__(self) -> None:
        self.requested = False
        self._clocks: list[PausableTimeout] = []

    def request(self) -> None:
        """Ends each episode at its next wait or at its start; one that has been played is still
        scored.
        """
        self.requested = True
        for clock in self._clocks:
            clock.spend()

    def hold(self, clock: PausableTimeout) -> None:
        """Takes the clock of an episode's deadline, which ``request`` spends."""
        self._clocks.append(clock)
        if self.requested:
            clock.spend()


class Deadline(PausableTimeout):
    """Ends its block after ``seconds``.

    Waits for a sandbox or thread that others use, or for a server that starts again, do not count,
    nor does time in which the engine is paused. A class for speed, because each turn in flight
    holds two.

    Args:
        seconds: the time limit.
        reason: the text of the error.
        straggler: may end the block earlier.

    Raises:
        LimitSpentError: the time is up; its text is ``reason``, or the straggler's reason.
    """

    __slots__ = ("_counted", "_reason", "_straggler")

    def __init__(
        self, seconds: float, reason: str, straggler: StragglerCancel | None = None
    ) -> None:
        super().__init__(seconds, _DEADLINES.get())
        self._counted = counted_by(self)
        self._reason = reason
        self._straggler = straggler

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._straggler is not None:
            self._straggler.hold(self)
        self._counted.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._counted.__exit__(kind, error, trace)
        try:
            await super().__aexit__(kind, error, trace)
            timed_out = isinstance(error, TimeoutError)
        except TimeoutError:
            timed_out = True
        # A TimeoutError of the block's own is not ours: the clock alone says whether this deadline
        # has passed.
        if timed_out and self.expired():
            straggler = self._straggler
            cancelled = straggler is not None and straggler.requested
            raise LimitSpentError(
                StragglerCancel.reason if cancelled else self._reason
            ) from None
