"""Engine time: it stands still while the engine is paused, so that no request's deadline passes meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.errors import EngineError

__all__ = ["EngineClock"]

T = TypeVar("T")

_LOOK_S = 0.25


class EngineClock:
    """Seconds during which the engine was not paused. Used from one event loop."""

    def __init__(self) -> None:
        self._paused_at: float | None = None
        self._paused_s = 0.0

    def stop(self) -> None:
        """Time stands still; a second call does nothing."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def go(self) -> None:
        """Time passes again."""
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
            self._paused_at = None

    def now(self) -> float:
        """Engine seconds since an arbitrary moment."""
        return (self._paused_at or time.monotonic()) - self._paused_s

    async def limit(self, work: Coroutine[Any, Any, T], seconds: float | None, what: str) -> T:
        """Awaits ``work`` for at most so many engine seconds.

        Raises:
            EngineError: they passed; the work is cancelled.
        """
        if seconds is None:
            return await work
        task = asyncio.ensure_future(work)
        end = self.now() + seconds
        try:
            while not task.done():
                if self.now() >= end:
                    raise EngineError(
                        f"{what} spent its deadline_s={seconds:g}; raise it, or look why it is slow"
                    )
                await asyncio.wait({task}, timeout=min(_LOOK_S, max(end - self.now(), 0.001)))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
