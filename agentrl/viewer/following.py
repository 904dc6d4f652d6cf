"""Following: tells all who watch a run what is new in it, by server-sent events.

One thread a watched run looks at its files, however many follow; it begins with the first follower
and ends after the last has left. A look costs a few ``stat`` calls; what changed is then read, and
costs more, so that the next look comes later. The time between two looks also grows while nothing
changes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import AgentRLError, StoreError
from agentrl.store.disk import stamps_of
from agentrl.store.json_text import to_json
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.run_view import alert, located

logger = logging.getLogger(__name__)

_QUIET_S = 0.3
"""Between two looks after the first that found nothing new."""
_SLOWER = 1.03
_LATEST_S = 0.7
"""Where nothing was new for half a minute, to take less of a core."""
_BUSY_S = 0.5
_KEEP_ALIVE_S = 15.0
_MOST_STREAMS = 4
"""Streams that stay open; a browser has six connections to a host, and its pages need some."""
_RETRY_MS = 700
_MOST_ALERTS = 100


@dataclass(frozen=True, slots=True)
class Event:
    """Something new.

    Args:
        number: grows with each event of the run.
        kind: ``trajectories``, ``step``, ``state`` or ``alert``.
        data: JSON.
    """

    number: int
    kind: str
    data: Any

    def text(self) -> str:
        """As it is sent."""
        return f"id: {self.number}\nevent: {self.kind}\ndata: {to_json(self.data)}\n\n"


class _Follower:
    """One stream's queue, filled from the watcher's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def put(self, event: Event | None) -> None:
        if not self._loop.is_closed():
            # The thread that follows the run calls this; the queue is the loop's.
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self, timeout_s: float) -> Event | None:
        """The next event; None at the end.

        Raises:
            TimeoutError: there was none.
        """
        return await asyncio.wait_for(self._queue.get(), timeout_s)


class RunWatcher:
    """Looks at one run while anybody follows it.

    Args:
        run: which.
    """

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        # guards all below; the thread holds it only to publish
        self._changed = threading.Condition()
        self._followers: set[_Follower] = set()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._latest: dict[str, Event] = {}
        self._alerts: deque[Event] = deque(maxlen=_MOST_ALERTS)
        # of the thread alone
        self._signature: object = None
        self._events: list[dict[str, Any]] | None = None

    def join(self, follower: _Follower, since: int | None) -> None:
        """Adds a follower, who is told at once what is newer than ``since``."""
        with self._changed:
            # A page that comes back is told the alerts that it missed; a new one asks for all
            # itself.
            known = [*self._latest.values(), *(self._alerts if since is not None else ())]
            for event in sorted(known, key=lambda event: event.number):
                if event.number > (since or 0):
                    follower.put(event)
            self._followers.add(follower)
            if self._thread is None:
                # ends by itself within one look after the last follower has left
                self._thread = threading.Thread(
                    target=self._work, name=f"watch-{self._run.key}", daemon=True
                )
                self._thread.start()

    def leave(self, follower: _Follower) -> None:
        """Takes a follower away."""
        with self._changed:
            self._followers.discard(follower)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every stream."""
        with self._changed:
            for follower in self._followers:
                follower.put(None)

    def _work(self) -> None:
        quiet_s = _QUIET_S
        while True:
            try:
                changed = self._look()
            except (AgentRLError, OSError) as error:
                # such as a run that was moved away
                changed = self._publish("state", {"state": "lost", "why": str(error)})
            except Exception as error:
                # No page would be told anything more, were this to end the thread.
                changed = self._publish("state", {"state": "lost", "why": repr(error)})
                if changed:
                    told = {"event": "follow_failed", "run": self._run.name}
                    logger.exception(
                        "the viewer cannot follow %s", self._run.name, extra=told
                    )
            wait_s = _BUSY_S if changed else quiet_s
            quiet_s = _QUIET_S if changed else min(_LATEST_S, quiet_s * _SLOWER)
            with self._changed:
                self._changed.wait_for(lambda: not self._followers, wait_s)
                # Under the lock: one who joins right after this starts another thread.
                if not self._followers:
                    self._thread = None
                    return

    def _look(self) -> bool:
        """Publishes what is new; whether anything was."""
        run = self._run
        if not run.directory.record_path.is_file():
            raise StoreError(f"the run is no longer at {run.directory.root}")
        state = {"state": run.state().kind}
        # The files' sizes and times cost little; reading what changed waits for a difference.
        signature = run_signature(run)
        if signature == self._signature:
            return self._publish("state", state)
        with run.lock:
            run.metrics.refresh()
            step = {"step": run.metrics.newest_step, "stage": run.metrics.newest_stage}
            changed_rows = run.refresh_index()
            total = run.num_trajectories()
            events = run.events()
        self._signature = signature
        self._publish("state", state)
        self._publish("step", step)
        before = self._latest.get("trajectories")
        known = total if before is None else before.data["total"]
        if changed_rows or before is None or known != total:
            self._publish("trajectories", {"new": max(0, total - known), "total": total})
        known = events if self._events is None else self._events
        self._events = events
        # All of them, where the run is another one.
        told = len(known) if events[: len(known)] == known else 0
        for event in events[told:]:
            if event.get("level") != "info":
                self._publish("alert", alert(located(run, event)))
        return True

    def _publish(self, kind: str, data: dict[str, Any]) -> bool:
        with self._changed:
            latest = self._latest.get(kind)
            if latest is not None and latest.data == data and kind != "trajectories":
                return False
            self._number += 1
            event = Event(self._number, kind, data)
            if kind == "alert":
                self._alerts.append(event)
            else:
                self._latest[kind] = event
            for follower in self._followers:
                follower.put(event)
            return True


class Following:
    """The streams of a viewer; used in its event loop, but for ``close``."""

    def __init__(self) -> None:
        self._watchers: dict[str, RunWatcher] = {}
        self._open = 0
        self._closed = False

    async def stream(self, run: OpenRun, since: int | None) -> AsyncIterator[str]:
        """The text of a stream of events.

        Args:
            run: which run.
            since: the last event that the page has; None for a new page.
        """
        watcher = self._watchers.setdefault(run.key, RunWatcher(run))
        follower = _Follower()
        # A browser's connections to a host are few, and its tabs share them.
        stays = self._open < _MOST_STREAMS
        self._open += 1
        watcher.join(follower, since)
        try:
            yield f"retry: {_RETRY_MS}\n\n"
            while not self._closed:
                try:
                    event = await follower.next(_KEEP_ALIVE_S if stays else _BUSY_S)
                except TimeoutError:
                    if not stays:
                        # the page asks again after the retry's time
                        return
                    yield ": nothing new\n\n"
                    continue
                if event is None:
                    return
                yield event.text()
        finally:
            self._open -= 1
            watcher.leave(follower)

    def close(self) -> None:
        """Ends every stream."""
        self._closed = True
        for watcher in self._watchers.values():
            watcher.close()


def run_signature(run: OpenRun) -> object:
    """What differs once anything was written that a list or a chart shows."""
    own = run.directory
    paths: list[Path] = [
        own.metrics_path,
        own.events_path,
        own.ledger_path,
        own.sealed_folder,
    ]
    paths += [run.notes.folder, *own.live_folder.glob("step=*/*.jsonl")]
    return stamps_of(paths)
