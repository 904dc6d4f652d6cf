"""Loop thread: an event loop on a daemon thread, which nothing but its owner ends.

- asyncio lets an exit in a task or a callback end the loop, and so does ``loop.stop()``. It is
  told, and the loop goes on: who waits for it gets an answer, and what it holds can be closed.
- Where the loop itself breaks, what waits for it fails with the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LoopThread:
    """A daemon thread with an event loop.

    Args:
        name: of the thread.
        on_death: told what ended the loop, or would have, on the thread; by default the log is.

    Attributes:
        loop: on the thread only.
    """

    def __init__(self, name: str, on_death: Callable[[BaseException], None] | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self._on_death = on_death or self._log
        # single operations of a set: callers add, the thread of each future's end discards
        self._open: set[Future[Any]] = set()
        self._stopping = False
        # Runs the loop until stop(); a daemon, as a forked child may never stop it.
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the thread, soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to do
            self.loop.call_soon_threadsafe(function)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; from any other thread.

        Raises:
            RuntimeError: the loop has ended.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread; waits for it unless called on it. A second call does nothing."""
        self._stopping = True
        self.call(self.loop.stop)
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._stopping:
                self._run()
        except BaseException as error:  # noqa: BLE001 - handed to those who wait
            for future in list(self._open):
                with contextlib.suppress(InvalidStateError):  # it was answered just now
                    future.set_exception(error)
            self._on_death(error)
        finally:
            self.loop.close()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            if not self._stopping:
                self._on_death(RuntimeError("somebody called stop() on its event loop"))
        except (SystemExit, KeyboardInterrupt) as error:  # of a task or a callback
            self._on_death(error)

    def _log(self, error: BaseException) -> None:
        logger.error(
            "the thread %s met %r",
            self.thread.name,
            error,
            extra={"event": "loop_interrupted", "of": self.thread.name},
        )
