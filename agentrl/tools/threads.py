"""Bounded threads: run synchronous code beside an event loop.

- A call past its deadline is abandoned and counted; its place goes to another call.
- Threads are daemons, so that an abandoned call never holds up the interpreter's exit.
- The bound holds over all event loops of a process. (anyio's worker threads are no daemons, and
  its limiter belongs to one loop.)

- A call past its deadline is abandoned and counted; its place goes to another call.
- Threads are daemons, so that an abandoned call never holds up the interpreter's exit.
- The bound holds over all event loops of a process. (anyio's worker threads are no daemons, and
  its limiter belongs to one loop.)
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

R = TypeVar("R")


class DeadlineError(TimeoutError):
    """The deadline of a call passed; a TimeoutError that the call itself raised is another
    thing.
    """


@dataclass(eq=False)
class _Job:
    """One call on its way through a thread; ``left`` means that nobody waits for it any more, and
    ``started`` is None where nobody asks when it began.
    """

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    started: asyncio.Future[None] | None
    done: asyncio.Future[tuple[Any, BaseException | None]]
    running: bool = False
    finished: bool = False
    left: bool = False


class BoundedThreads:
    """At most ``max_threads`` calls at once, from any event loop of the process.

    Python cannot stop a thread. A call whose caller stopped waiting (a deadline, a cancellation) is
    abandoned: it keeps its daemon thread, which ends with it and never holds up the interpreter's
    exit, and another thread takes its place.

    Args:
        max_threads: calls that run at once; further ones wait their turn, and a deadline starts
            with the turn.
        name: how the threads are called in a stack dump.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._name = name
        # Calls in order, put under the lock and taken by any thread; None ends an idle thread.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Guards the counts below and the states of jobs, over callers' loops and worker threads.
        self._lock = threading.Lock()
        self._max_threads = 0
        self._num_threads = 0
        self._num_idle = 0  # threads that no submitted call has been given
        self._num_waiting = 0  # calls that no thread has been given
        self._num_abandoned = 0
        self.resize(max_threads)

    @property
    def max_threads(self) -> int:
        """Calls that run at once."""
        return self._max_threads

    def resize(self, max_threads: int) -> None:
        """Another bound from now on: calls that wait may start at once, and those that run go on.

        Raises:
            ValueError: the bound is below 1.
        """
        if max_threads < 1:
            raise ValueError(f"max_threads must be at least 1, got {max_threads}")
        with self._lock:
            self._max_threads = max_threads
            while self._num_waiting and self._num_threads < max_threads:
                self._num_waiting -= 1
                self._start_thread()
            while self._num_idle and self._num_threads > max_threads:
                self._num_idle -= 1
                self._num_threads -= 1
                self._jobs.put(None)

    @property
    def num_abandoned(self) -> int:
        """Calls given up while they ran, since the process started."""
        return self._num_abandoned

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
        started = None if deadline_s is None else loop.create_future()
        job = _Job(lambda: context.run(work), loop, started, loop.create_future())
        self._submit(job)
        try:
            if started is not None:
                await started
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

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._num_idle:
                self._num_idle -= 1
            elif self._num_threads < self._max_threads:
                self._start_thread()
            else:
                self._num_waiting += 1
            self._jobs.put(job)

    def _start_thread(self) -> None:
        self._num_threads += 1
        # A daemon: an abandoned call must not hold up the interpreter's exit.
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _leave(self, job: _Job) -> None:
        with self._lock:
            job.left = True
            if job.running and not job.finished:
                self._num_abandoned += 1
                self._num_threads -= 1
                if self._num_waiting and self._num_threads < self._max_threads:
                    self._num_waiting -= 1
                    self._start_thread()

    def _give_thread_away(self) -> bool:
        """A thread is done with its call: it goes to one that waits, or to the next to come; False
        where there are too many, and it is to end. Under the lock.
        """
        if self._num_threads > self._max_threads:
            self._num_threads -= 1
            return False
        if self._num_waiting:
            self._num_waiting -= 1
        else:
            self._num_idle += 1
        return True

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            with self._lock:
                if job.left:
                    if not self._give_thread_away():
                        return
                    continue
                job.running = True
            if job.started is not None:
                _tell(job.loop, job.started, None)
            outcome = _outcome(job.work)
            with self._lock:
                job.finished = True
                if job.left:  # abandoned: its place was given away
                    return
                goes_on = self._give_thread_away()
            _tell(job.loop, job.done, outcome)
            del job, outcome  # an idle thread keeps nothing alive
            if not goes_on:
                return


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - handed to the waiting coroutine, which raises it
        return None, error


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any) -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(value)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        if not loop.is_closed():  # a closed loop has nobody left to tell
            raise


TOOL_THREADS = BoundedThreads(32, "agentrl-tool")
"""The threads of every synchronous tool in this process."""
