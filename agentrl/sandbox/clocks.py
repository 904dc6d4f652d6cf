"""Deadlines of whoever waits: they stand still while a wait is the machine's doing and not the
caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Clock", "clock_paused", "counted_by"]


class Clock(Protocol):
    """A deadline that can be stopped; calls nest, and may come from any thread."""

    def stop(self) -> None: ...

    def go_on(self) -> None: ...


_CLOCKS: ContextVar[tuple[Clock, ...]] = ContextVar("agentrl_clocks", default=())


class _Counted:
    """See ``counted_by``."""

    __slots__ = ("_clock", "_token")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._token = _CLOCKS.set((*_CLOCKS.get(), self._clock))

    def __exit__(self, *raised: object) -> None:
        _CLOCKS.reset(self._token)


def counted_by(clock: Clock) -> AbstractContextManager[None]:
    """``clock`` counts what runs within, and in the tasks that it starts, apart from what stands
    still.
    """
    return _Counted(clock)


@contextmanager
def clock_paused() -> Iterator[None]:
    """No clock of the caller counts what happens within: it waits for its turn at something that
    others use.
    """
    clocks = _CLOCKS.get()
    for clock in clocks:
        clock.stop()
    try:
        yield
    finally:
        for clock in clocks:
            clock.go_on()
