"""Loop thread: runs an event loop on a daemon thread, with the watch that tells who keeps it.

- asyncio lets an exit in a task or a callback end the loop, and so does ``loop.stop()``. It is
  told, and the loop goes on: who waits for it gets an answer, and what it holds can be closed.
- Where the loop itself breaks, what waits for it fails with the cause.
- A beat on the loop measures how late it comes; nothing else there can tell while it is held.
- A thread beside it looks at the loop's stack when a beat is overdue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.types.user_code.place import is_users

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

    def __init__(
        self, name: str, on_death: Callable[[BaseException], None] | None = None
    ) -> None:
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
        with contextlib.suppress(RuntimeError):
            # Where the loop is closed nothing is left to do.
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
        except BaseException as error:  # noqa: BLE001
            # Those who wait get it.
            for future in list(self._open):
                with contextlib.suppress(InvalidStateError):
                    # It may have been answered just now.
                    future.set_exception(error)
            self._on_death(error)
        finally:
            self.loop.close()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            if not self._stopping:
                self._on_death(RuntimeError("somebody called stop() on its event loop"))
        except (SystemExit, KeyboardInterrupt) as error:
            # An exit in a task or a callback leaves the loop.
            self._on_death(error)

    def _log(self, error: BaseException) -> None:
        logger.error(
            "the thread %s met %r",
            self.thread.name,
            error,
            extra={"event": "loop_interrupted", "of": self.thread.name},
        )


_BEAT_S = 0.1
_OVERDUE_S = 1.0
"""A loop that is held for so long is looked at."""

# What this process has told; single operations of a set, from any thread.
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class LoopLag:
    """How an event loop was kept.

    Args:
        seconds: most that it stood still at once.
        where: the user's function that kept it, as ``function (file.py:12)``; empty where it was
            none, or not for long.
    """

    seconds: float
    where: str = ""


def tell_blocked(where: str) -> None:
    """Warns of a function that keeps the loop, once in a process."""
    if where not in _told:
        _told.add(where)
        logger.warning(
            "%s keeps the event loop of all episodes: nothing else goes on meanwhile; write it as "
            "a plain def, which gets a thread, or await what it waits for",
            where,
            extra={"event": "loop_blocked", "where": where},
        )


class LoopWatch:
    """Watches the loop of a thread until ``close``.

    Args:
        watched: the thread.
        beat_s: seconds between two looks; a lag is as exact.
    """

    def __init__(self, watched: LoopThread, *, beat_s: float = _BEAT_S) -> None:
        self._watched = watched
        self._beat_s = beat_s
        # written on the loop; the watching thread reads single values
        self._due = time.monotonic()
        self._longest_s = 0.0
        # written by the watching thread, taken on the loop
        self._where = ""
        self._ended = threading.Event()
        watched.call(self._beat)
        # a daemon, for a process that ends without closing it
        threading.Thread(target=self._watch, name="agentrl-loop-watch", daemon=True).start()

    def take(self) -> LoopLag:
        """The lag since the last call; on the loop alone."""
        lag = LoopLag(max(self._longest_s, time.monotonic() - self._due, 0.0), self._where)
        self._longest_s, self._where = 0.0, ""
        return lag

    def close(self) -> None:
        """Ends the watch; from any thread."""
        self._ended.set()

    def _beat(self) -> None:
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._due)
        self._due = now + self._beat_s
        if not self._ended.is_set():
            self._watched.loop.call_later(self._beat_s, self._beat)

    def _watch(self) -> None:
        while not self._ended.wait(_OVERDUE_S / 4):
            if time.monotonic() - self._due > _OVERDUE_S and (where := self._users_line()):
                self._where = where
                tell_blocked(where)

    def _users_line(self) -> str:
        frame = sys._current_frames().get(self._watched.thread.ident or 0)
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return ""
        return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
