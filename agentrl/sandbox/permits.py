"""FIFO semaphore: bounds concurrent work over any number of event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from agentrl.errors import SandboxError
from agentrl.types.clock import clock_paused


class FifoSemaphore:
    """At most ``count`` hold a permit; the others wait in order, each on its own event loop.

    ``async with permits`` takes one and gives it back whatever happens. A waiter that is cancelled
    costs none.

    Args:
        count: permits in all, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        # first come, first served
        self._waiting: deque[Future[None]] = deque()
        self._refusal: str | None = None
        # Guards all of the above; permits pass between event loops and threads, held for no wait.
        self._lock = threading.Lock()

    async def take(self) -> None:
        """Hold a permit from here on, when it is this caller's turn; its clock is paused until
        then.

        Raises:
            SandboxError: :meth:`close` was called, before or while this caller waited.
        """
        with self._lock:
            self.check_open()
            if self._free:
                self._free -= 1
                return
            permit = Future[None]()
            self._waiting.append(permit)
        try:
            with clock_paused():
                await asyncio.wrap_future(permit)
        except asyncio.CancelledError:
            # it is handed over within the lock: it is either here or not
            with self._lock:
                came_all_the_same = permit.done() and not permit.cancelled()
            if came_all_the_same:
                self.give()
            raise

    def give(self) -> None:
        """Give one back: to the first who waits, if any does. From any thread."""
        with self._lock:
            while self._waiting:
                permit = self._waiting.popleft()
                if permit.set_running_or_notify_cancel():
                    permit.set_result(None)
                    return
            self._free += 1

    @property
    def num_waiting(self) -> int:
        """Callers who wait; from any thread."""
        with self._lock:
            return len(self._waiting)

    def close(self, why: str) -> None:
        """Refuse those who wait and those who come from now on; permits that are held stay
        valid.
        """
        with self._lock:
            self._refusal = why
            waiting = self._waiting
            self._waiting = deque()
            for permit in waiting:
                if permit.set_running_or_notify_cancel():
                    permit.set_exception(SandboxError(why, retryable=False))

    def check_open(self) -> None:
        """Raises SandboxError once :meth:`close` was called."""
        if self._refusal is not None:
            raise SandboxError(self._refusal, retryable=False)

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give()
