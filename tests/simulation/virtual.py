"""Virtual time: threads, locks and a clock of a simulation, in one thread of the machine.

Each simulated thread is a greenlet. It runs until it waits; then the next event happens, at a time
that is its own. Events of one time happen in an order that the seed draws. So a seed replays
exactly, and every wait costs nothing.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import (  # type: ignore[import-untyped]
    GreenletExit,
    getcurrent,
    greenlet,
)

from agentrl.controller.threads import Threads

_TICK_S = 1e-9
"""Of the clock."""
_AT_ONCE = 10_000
"""Events at one time that a simulation never has; it has some forty."""


class DeadlockError(AssertionError):
    """Nothing can happen any more, and somebody waits."""


class VirtualTime:
    """The events of a simulation, and what happens by them.

    Args:
        seed: of every choice.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.num_events = 0
        self.after_event: Callable[[], None] = lambda: None
        """Called after each event: what must hold always."""
        self._events: list[tuple[float, float, int, Process, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.hub = getcurrent()
        self._buried: list[greenlet] = []

    def at(self, after_s: float, do: Callable[[], None], process: Process) -> None:
        """Something happens in a process, so many seconds from now, if that lives by then."""
        # A shorter wait could be less than the rounding of ``now_s``, and would never be over.
        due = self.now_s + (max(_TICK_S, after_s) if after_s > 0 else 0.0)
        event = (due, self.random.random(), next(self._numbers), process, do)
        heapq.heappush(self._events, event)

    def run(self, until: Callable[[], bool], horizon_s: float) -> None:
        """Has events happen until something is so.

        Raises:
            DeadlockError: nothing is left to happen, only what takes no time, or the time is over.
        """
        at_once = 0
        while not until():
            if not self._events:
                raise DeadlockError(f"at {self.now_s:.1f} s nothing is left to happen")
            due, _, _, process, do = heapq.heappop(self._events)
            if not process.alive:
                continue
            if due > horizon_s:
                raise DeadlockError(f"nothing ended within {horizon_s:.0f} s")
            at_once = at_once + 1 if due <= self.now_s else 0
            if at_once > _AT_ONCE:
                raise DeadlockError(f"at {self.now_s:.1f} s the clock moves on no more")
            self.now_s = max(self.now_s, due)
            self.num_events += 1
            do()
            self.after_event()

    def wait(self) -> None:
        """Ends the turn of the thread that calls."""
        self.hub.switch()

    def bury(self, threads: list[greenlet]) -> None:
        """Threads of a dead process: none of them runs again."""
        # What is collected would run its `finally`, which no killed process does.
        self._buried += threads

    def exhume(self) -> None:
        """At the end of the simulation: what never ran to its end does so now, on dead locks."""
        for one in self._buried:
            if one and not one.dead:
                one.throw()
        self._buried.clear()


class Process:
    """A process whose threads die together.

    Args:
        time: of the simulation.
    """

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.alive = True
        self.error: BaseException | None = None
        """What ended a thread of it."""
        self.ahead_s = 0.0
        """That its clock has jumped."""
        self._greenlets: list[greenlet] = []
        self.threads = Threads(
            now=lambda: time.now_s + self.ahead_s,
            condition=lambda: _Condition(self),  # type: ignore[arg-type,return-value]
            mailbox=lambda: _Mailbox(self),  # type: ignore[arg-type,return-value]
            begin=self.begin,  # type: ignore[arg-type]
        )

    def begin(self, run: Callable[[], None], name: str) -> _Thread:
        """Starts a thread."""
        thread = _Thread(self, run)
        self._greenlets.append(thread.greenlet)
        self.time.at(0.0, thread.greenlet.switch, self)
        return thread

    def sleep(self, seconds: float) -> None:
        """The thread that calls waits so long."""
        self.time.at(seconds, getcurrent().switch, self)
        self.time.wait()

    def kill(self) -> None:
        """Nothing of it happens any more; a thread of it that calls this never returns."""
        self.alive = False
        self.time.bury(self._greenlets)
        if getcurrent() in self._greenlets:
            self.time.wait()
            raise GreenletExit  # at the end of the simulation

    def block(self) -> None:
        """The thread that calls waits until somebody wakes it."""
        self.time.wait()
        if not self.alive:
            raise GreenletExit


class _Thread:
    def __init__(self, process: Process, run: Callable[[], None]) -> None:
        self._process = process
        self._done = _Condition(process)
        self._ended = False

        def guarded() -> None:
            try:
                run()
            except GreenletExit:
                return
            except BaseException as error:  # noqa: BLE001  read by the simulation
                process.error = process.error or error
            self._ended = True
            with self._done:
                self._done.notify_all()

        self.greenlet = greenlet(guarded, process.time.hub)

    def is_alive(self) -> bool:
        return not self._ended

    def join(self, timeout: float | None = None) -> None:
        with self._done:
            self._done.wait_for(lambda: self._ended, timeout)


class _Condition:
    """As ``threading.Condition`` with its reentrant lock."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._owner: Any = None
        self._depth = 0
        self._entering: deque[Any] = deque()
        self._waiting: dict[int, Any] = {}
        self._tokens = itertools.count()

    def __enter__(self) -> _Condition:
        if not self._process.alive:
            return self
        me = getcurrent()
        if self._owner is me:
            self._depth += 1
            return self
        if self._process.time.random.random() < 0.1 and me in self._process._greenlets:
            self._process.sleep(0.0)  # another thread may come before
        self._acquire(1)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._process.alive:
            return
        assert self._owner is getcurrent(), "released by another than holds it"
        self._depth -= 1
        if not self._depth:
            self._release()

    def _acquire(self, depth: int) -> None:
        me = getcurrent()
        while self._owner is not None:
            self._entering.append(me)
            self._process.block()
        self._owner, self._depth = me, depth

    def _release(self) -> None:
        self._owner, self._depth = None, 0
        if self._entering:
            self._process.time.at(0.0, self._entering.popleft().switch, self._process)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._process.alive:
            raise GreenletExit
        me, depth, token = getcurrent(), self._depth, next(self._tokens)
        notified = False

        def wake(by_notice: bool) -> None:
            nonlocal notified
            if self._waiting.pop(token, None) is not None:
                notified = by_notice
                me.switch()

        self._waiting[token] = wake
        self._release()
        if timeout is not None:
            self._process.time.at(timeout, lambda: wake(False), self._process)
        self._process.block()
        self._acquire(depth)
        return notified

    def wait_for(self, ready: Callable[[], Any], timeout: float | None = None) -> Any:
        now = self._process.threads.now
        end = None if timeout is None else now() + timeout
        while not (result := ready()):
            left = None if end is None else end - now()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        for wake in list(self._waiting.values()):
            self._process.time.at(0.0, partial(wake, True), self._process)


class _Mailbox:
    """As ``queue.SimpleQueue``, of one reader."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._reader: Any = None
        self._number = 0

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._process.time.at(0.0, self._wake(self._number), self._process)

    def get(self, timeout: float | None = None) -> Any:
        if not self._items and (timeout is None or timeout > 0):
            self._reader = getcurrent()
            self._number += 1
            if timeout is not None:
                self._process.time.at(timeout, self._wake(self._number), self._process)
            self._process.block()
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def _wake(self, number: int) -> Callable[[], None]:
        def wake() -> None:
            if self._number == number and self._reader is not None:
                reader, self._reader = self._reader, None
                reader.switch()

        return wake
