"""Tool gates: what the episodes of a process share of one tool or service: its places, its rate,
and whether what is behind it answers.

A gate holds over all event loops of the process, which meet it from their own threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.types.clock import clock_paused


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that waits for a place; ``granted`` belongs to the caller's loop."""

    most: int
    granted: asyncio.Future[None]


class ToolGate:
    """The calls of one tool, or the steps of one service, in this process.

    Attributes:
        num_answers: calls that what is behind the tool answered, since the process began.
    """

    def __init__(self) -> None:
        # Guards all that follows, over event loops.
        self._lock = threading.Lock()
        # By episode.
        self._running: Counter[str] = Counter()
        self._num_running = 0
        # In order.
        self._waiting: deque[_Waiting] = deque()
        # When the rate lets the next call begin.
        self._next_at = 0.0
        self.num_answers = 0

    @asynccontextmanager
    async def entered(
        self,
        episode_id: str,
        *,
        max_concurrent: int | None = None,
        calls_per_s: float | None = None,
    ) -> AsyncIterator[float]:
        """A place for one call, for which no deadline counts the wait.

        Args:
            episode_id: whose call it is.
            max_concurrent: places; None sets no limit.
            calls_per_s: calls that begin in a second; None sets no limit.

        Yields:
            Seconds that it waited.
        """
        began = time.monotonic()
        await self._take(max_concurrent)
        try:
            await self._pace(calls_per_s)
            with self._lock:
                self._running[episode_id] += 1
            try:
                yield time.monotonic() - began
            finally:
                with self._lock:
                    self._running[episode_id] -= 1
                    if not self._running[episode_id]:
                        del self._running[episode_id]
        finally:
            self._release()

    def is_alone(self) -> bool:
        """Whether the calls that run are of one episode."""
        with self._lock:
            return len(self._running) <= 1

    def count_answer(self) -> None:
        """What is behind the tool has answered."""
        with self._lock:
            self.num_answers += 1

    async def _take(self, most: int | None) -> None:
        with self._lock:
            if most is None or (self._num_running < most and not self._waiting):
                self._num_running += 1
                return
            waiting = _Waiting(most, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
        try:
            with clock_paused():
                await waiting.granted
        except asyncio.CancelledError:
            with self._lock:
                left = waiting in self._waiting
                if left:
                    self._waiting.remove(waiting)
            # The place was given in the meantime.
            if not left:
                self._release()
            raise

    async def _pace(self, calls_per_s: float | None) -> None:
        if calls_per_s is None:
            return
        with self._lock:
            at = max(time.monotonic(), self._next_at)
            self._next_at = at + 1 / calls_per_s
        with clock_paused():
            await asyncio.sleep(max(0.0, at - time.monotonic()))

    def _release(self) -> None:
        with self._lock:
            self._num_running -= 1
            while self._waiting and self._num_running < self._waiting[0].most:
                waiting = self._waiting.popleft()
                loop = waiting.granted.get_loop()
                # Nobody is left to take it.
                if loop.is_closed():
                    continue
                self._num_running += 1
                # The one who waits may be in another thread's loop.
                loop.call_soon_threadsafe(_grant, waiting.granted)


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


# Guards _gates.
_lock = threading.Lock()
_gates: dict[str, ToolGate] = {}


def gate_of(name: str) -> ToolGate:
    """The gate of the tool or service of this name, in this process."""
    with _lock:
        return _gates.setdefault(name, ToolGate())
