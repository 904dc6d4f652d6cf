"""The engine's thread: an inbox of calls, the step loop, and delivery to any number of event
loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch

from agentrl.engines.life import EngineLife
from agentrl.engines.torch.core import LOWER, TorchScheduler
from agentrl.engines.torch.job import ScheduledRequest
from agentrl.engines.torch.memory import out_of_memory

T = TypeVar("T")


class EngineThread:
    """Runs a core on one daemon thread; whatever touches the core is posted here and runs between
    two steps. What was posted runs, also when the thread ends.

    An exception in a step kills the engine: every request and call in flight fails, and so does
    every later one.
    """

    def __init__(
        self, core: TorchScheduler, life: EngineLife, num_threads: int | None
    ) -> None:
        self._core = core
        self._life = life
        self._num_threads = num_threads
        # from any thread that uses the engine, to the engine's own
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        # guards the end: a call is posted before the engine is closed, or refused
        self._ending = threading.Lock()
        self._drained: Future[None] | None = None
        self._thread = threading.Thread(
            target=self._main, name="agentrl-torch-engine", daemon=True
        )
        self._thread.start()

    def post(self, function: Callable[[], object]) -> bool:
        """Runs ``function`` on the thread, soon; False where the thread has ended and it never
        will.
        """
        with self._ending:
            if not self._life.closed:
                self._inbox.put(function)
        return not self._life.closed

    def submit(self, function: Callable[[], object]) -> None:
        """Runs ``function`` on the thread, soon.

        Raises:
            EngineError: the engine has ended.
        """
        if not self.post(function):
            raise self._life.error()

    def call(self, function: Callable[[], T]) -> T:
        """Runs ``function`` on the thread and waits for what it returns or raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  (handed to the caller, who raises it)
                future.set_exception(error)

        self.submit(run)
        return future.result()

    def drain(self) -> None:
        """Admits nothing more, waits until nothing runs, and pauses."""
        future: Future[None] = Future()

        def run() -> None:
            self._core.admitting = False
            self._drained = future

        self.submit(run)
        future.result()

    def close(self) -> None:
        """Ends the thread; what is in flight fails."""
        self.post(lambda: self._life.close("it was closed"))
        self._thread.join()

    def _main(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        crash = ""
        try:
            # torch keeps the mode for each thread.
            with torch.inference_mode():
                self._loop()
        except BaseException as error:  # noqa: BLE001  (the engine's boundary: a crash becomes the state "closed")
            crash = out_of_memory("its thread", error, LOWER)
            crash = crash or f"its thread failed: {type(error).__name__}: {error}"
        self._end(crash)

    def _loop(self) -> None:
        core = self._core
        while not self._life.closed:
            self._run_inbox(wait=not self._ready())
            if self._ready():
                core.step()
            if self._drained is not None and core.drained:
                self._life.pause("drain")
                core.admitting = True
                self._drained.set_result(None)
                self._drained = None
            if core.outbox:
                self._deliver()

    def _ready(self) -> bool:
        return self._life.paused is None and not self._life.closed and self._core.has_work

    def _run_inbox(self, *, wait: bool) -> None:
        if wait:
            self._inbox.get()()
        # No other thread takes from it, so that what is not empty stays so until ``get``.
        while not self._inbox.empty():
            self._inbox.get()()

    def _deliver(self) -> None:
        """Resolves the futures of answered requests, with one wake-up for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[ScheduledRequest]] = {}
        for job in self._core.outbox:
            by_loop.setdefault(job.future.get_loop(), []).append(job)
        self._core.outbox.clear()
        for loop, jobs in by_loop.items():
            with contextlib.suppress(RuntimeError):
                # it was closed: nobody awaits these any more
                loop.call_soon_threadsafe(_resolve, jobs)

    def _end(self, crash: str) -> None:
        with self._ending:
            self._life.close(crash)
        # what was posted before; submitted requests fail below
        self._run_inbox(wait=False)
        self._core.fail_all()
        self._deliver()
        if self._drained is not None:
            self._drained.set_exception(self._life.error())


def _resolve(jobs: list[ScheduledRequest]) -> None:
    for job in jobs:
        job.resolve()
