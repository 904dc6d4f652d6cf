"""Threads: what code of several threads stands on; a simulation gives it others, on a clock of its
own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ASLEEP_S = 5.0
"""Between two questions of somebody who asks twice a second: it stood still."""


def _begin(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True)
class Threads:
    """Those of this process.

    Args:
        now: monotonic seconds.
        condition: a new lock that waits and is notified.
        mailbox: a new queue.
        begin: starts a daemon thread by what it runs and its name; it can be joined.
    """

    now: Callable[[], float] = time.monotonic
    condition: Callable[[], threading.Condition] = threading.Condition
    mailbox: Callable[[], queue.SimpleQueue[Any]] = queue.SimpleQueue
    begin: Callable[[Callable[[], None], str], threading.Thread] = _begin


THREADS = Threads()


class AwakeClock:
    """Seconds in which whoever asks was awake: a process or machine that stood still has not waited
    for others, and blames nobody. It is asked again and again while somebody waits.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = now()
        self._asleep_s = 0.0

    def __call__(self) -> float:
        now = self._now()
        gap_s, self._last = now - self._last, now
        if gap_s > _ASLEEP_S:
            self._asleep_s += gap_s
        return now - self._asleep_s
