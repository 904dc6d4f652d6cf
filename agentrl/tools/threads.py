"""Bounded threads: run synchronous code beside an event loop.

- A call past its deadline is abandoned and counted; its place goes to another call.
- Threads are daemons, so that an abandoned call never holds up the interpreter's exit.
- The bound holds over all event loops of a process. (anyio's worker threads are no daemons, and
  its limiter belongs to one loop.)
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.types.clock import clock_paused
from agentrl.types.user_code.wall import DeadlineError

R = TypeVar("R")


@dataclass(eq=False)
class _Job:
    """One call on its way through a thread; ``started`` is None where nobody asks when it began."""

    work: Callable[[], Any]
    started: asyncio.Future[None] | None
    done: asyncio.Future[tuple[Any, BaseException | None]]


class BoundedThreads:
    """At most ``max_threads`` calls at once, from any event loop of the process.

    Python cannot stop a thread. A call whose caller stopped waiting (a deadline, a cancellation) is
    abandoned: it keeps its daemon thread, which ends with it and never holds up the interpreter's
    exit, and another thread takes its place.

    Args:
        max_threads: calls that run at once; further ones wait their turn, which no clock of their
            callers counts.
        name: how the threads are called in a stack dump.

    Attributes:
        max_threads: calls that run at once.
        num_abandoned: calls that were given up and still run, each in a thread of its own.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._name = name
        # Guards all that follows, over callers' loops and worker threads; idle threads wait on it.
        self._changed = threading.Condition()
        # In order, taken by any thread.
        self._waiting: deque[_Job] = deque()
        # Without those that were abandoned.
        self._running: set[_Job] = set()
        # Without those of abandoned calls.
        self._num_threads = 0
        self._num_idle = 0
        self.num_abandoned = 0
        self.resize(max_threads)

    def resize(self, max_threads: int) -> None:
        """Another bound from now on: calls that wait may start at once, and those that run go on.

        Raises:
            ValueError: the bound is below 1.
        """
        if max_threads < 1:
            raise ValueError(f"max_threads must be at least 1, got {max_threads}")
        with self._changed:
            self.max_threads = max_threads
            self._start_threads()
            self._changed.notify_all()

    async def run(self, work: Callable[[], R], *, deadline_s: float | None = None) -> R:
        """Call ``work`` in a thread, with the caller's context variables.

        Args:
            work: a synchronous callable.
            deadline_s: seconds from the moment when a thread takes it up; None waits as long as it
                runs.

        Raises:
            DeadlineError: the deadline passed; the call is abandoned.
            BaseException: whatever ``work`` raised.
        """
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        job = _Job(lambda: context.run(work), None, loop.create_future())
        with self._changed:
            self._waiting.append(job)
            self._start_threads()
            self._changed.notify()
            is_queued = len(self._waiting) > self._num_idle
            if is_queued or deadline_s is not None:
                job.started = loop.create_future()
        try:
            if job.started is not None:
                with clock_paused() if is_queued else nullcontext():
                    await job.started
            async with asyncio.timeout(deadline_s):
                value, error = await job.done
        except asyncio.CancelledError:
            self._leave(job)
            raise
        except TimeoutError:
            self._leave(job)
            raise DeadlineError(f"took longer than {deadline_s:g} s") from None
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _start_threads(self) -> None:
        """Starts threads for the calls that no idle one takes; under the lock."""
        while self._num_idle < len(self._waiting) and self._num_threads < self.max_threads:
            self._num_idle += 1
            self._num_threads += 1
            # A daemon: an abandoned call must not hold up the interpreter's exit.
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _leave(self, job: _Job) -> None:
        """Nobody waits for the call any more: it never starts, or is abandoned."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            elif job in self._running:
                self._running.remove(job)
                self.num_abandoned += 1
                self._num_threads -= 1
                self._start_threads()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._too_many())
                self._num_idle -= 1
                if self._too_many():
                    self._num_threads -= 1
                    return
                job = self._waiting.popleft()
                self._running.add(job)
            if job.started is not None:
                _tell(job.started, None)
            outcome = _outcome(job.work)
            with self._changed:
                # Abandoned: its place was given away.
                if job not in self._running:
                    self.num_abandoned -= 1
                    return
                self._running.remove(job)
                self._num_idle += 1
            _tell(job.done, outcome)
            # An idle thread keeps nothing alive.
            del job, outcome

    def _too_many(self) -> bool:
        return self._num_threads > self.max_threads


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001
        # The waiting coroutine gets it, and raises it.
        return None, error


def _tell(future: asyncio.Future[Any], value: Any) -> None:
    loop = future.get_loop()

    def settle() -> None:
        if not future.done():
            future.set_result(value)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # A closed loop has nobody left to tell.
        if not loop.is_closed():
            raise


TOOL_THREADS = BoundedThreads(32, "agentrl-tool")
"""The threads of every synchronous tool in this process."""
