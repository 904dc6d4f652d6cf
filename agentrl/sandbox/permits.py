"""FIFO semaphore: bounds concurrent work over any number of event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import NamedTuple

from agentrl.errors import SandboxError
from agentrl.types.clock import clock_paused


class _PermitWaiter(NamedTuple):
    """A caller who waits; ``answer`` belongs to the caller's loop, and None is the permit."""

    most: int
    answer: asyncio.Future[SandboxError | None]


class FifoSemaphore:
    """At most ``count`` hold a permit; the others wait in order, each on its own event loop.

    ``async with permits`` takes one and gives it back whatever happens. A waiter that is cancelled
    costs none.

    Args:
        count: permits in all, at least 1; None sets no limit to those who name none.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._held = 0
        # first come, first served
        self._waiting: deque[_PermitWaiter] = deque()
        self._refusal: str | None = None
        # Guards all of the above; permits pass between event loops and threads, held for no wait.
        self._lock = threading.Lock()

    async def take(self, most: int | None = None) -> None:
        """Hold a permit from here on, when it is this caller's turn; its clock is paused until
        then.

        Args:
            most: permits in all for this caller, in place of ``count``.

        Raises:
            SandboxError: :meth:`close` was called, before or while this caller waited.
        """
        most = self._count if most is None else most
        with self._lock:
            self.check_open()
            if most is None or (self._held < most and not self._waiting):
                self._held += 1
                return
            waiting = _PermitWaiter(most, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
        try:
            with clock_paused():
                refusal = await waiting.answer
        except asyncio.CancelledError:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                else:
                    # The permit came in the meantime.
                    self._held -= 1
                self._hand_on()
            raise
        if refusal is not None:
            raise refusal

    def give(self) -> None:
        """Give one back: to the first who waits, if any does. From any thread."""
        with self._lock:
            self._held -= 1
            self._hand_on()

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
            while self._waiting:
                _answer(self._waiting.popleft(), SandboxError(why, retryable=False))

    def check_open(self) -> None:
        """Raises SandboxError once :meth:`close` was called."""
        if self._refusal is not None:
            raise SandboxError(self._refusal, retryable=False)

    def _hand_on(self) -> None:
        """Free permits go to those who wait; with the lock held."""
        while self._waiting and self._held < self._waiting[0].most:
            self._held += _answer(self._waiting.popleft(), None)

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give()


def _answer(waiting: _PermitWaiter, refusal: SandboxError | None) -> bool:
    """Whether there is somebody to hear it, who may be in another thread's loop."""

    def settle() -> None:
        if not waiting.answer.done():
            waiting.answer.set_result(refusal)

    try:
        waiting.answer.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop was closed.
        return False
    return True
