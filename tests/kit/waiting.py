"""Waiting: for a fact, for the end of a process; with deadlines that only end what hangs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 600.0
"""Long enough that no machine, however busy, reaches it: no outcome depends on it."""

PAUSE_S = 0.01


def until(
    look: Callable[[], T], told: Callable[[], object] = str, within_s: float = DEADLINE_S
) -> T:
    """What ``look`` gives once that is true; ``told`` is what a wait in vain says."""
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end, told() or f"it did not happen within {within_s:g} s"
        time.sleep(PAUSE_S)
    return found


async def until_async(look: Callable[[], T]) -> T:
    """The same on an event loop, which goes on meanwhile."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := look()):
            await asyncio.sleep(PAUSE_S)
    return found


def gather(collect: Callable[[float], list[T]], number: int = 1) -> list[T]:
    """The next ``number`` of what ``collect(seconds)`` brings."""
    found: list[T] = []

    def came() -> bool:
        found.extend(collect(1.0))
        return len(found) >= number

    until(came, lambda: f"{len(found)} of {number} came")
    assert len(found) == number
    return found


def is_alive(pid: int | str) -> bool:
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        os.kill(int(pid), 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return True
    return state not in ("Z", "X")
