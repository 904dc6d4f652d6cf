"""Tool gates: what the episodes of a process share of one tool or service: its places, its rate,
and whether what is behind it answers.

A gate holds over all event loops of the process, which meet it from their own threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.sandbox.permits import FifoSemaphore
from agentrl.types.clock import clock_paused


class ToolGate:
    """The calls of one tool, or the steps of one service, in this process.

    Attributes:
        num_answers: calls that what is behind the tool answered, since the process began.
    """

    def __init__(self) -> None:
        self._places = FifoSemaphore()
        # Guards all that follows, over event loops.
        self._lock = threading.Lock()
        # By episode.
        self._running: Counter[str] = Counter()
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
        await self._places.take(max_concurrent)
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
            self._places.give()

    def is_alone(self) -> bool:
        """Whether the calls that run are of one episode."""
        with self._lock:
            return len(self._running) <= 1

    def count_answer(self) -> None:
        """What is behind the tool has answered."""
        with self._lock:
            self.num_answers += 1

    async def _pace(self, calls_per_s: float | None) -> None:
        if calls_per_s is None:
            return
        with self._lock:
            at = max(time.monotonic(), self._next_at)
            self._next_at = at + 1 / calls_per_s
        with clock_paused():
            await asyncio.sleep(max(0.0, at - time.monotonic()))


# Guards _gates.
_lock = threading.Lock()
_gates: dict[str, ToolGate] = {}


def gate_of(name: str) -> ToolGate:
    """The gate of the tool or service of this name, in this process."""
    with _lock:
        return _gates.setdefault(name, ToolGate())
