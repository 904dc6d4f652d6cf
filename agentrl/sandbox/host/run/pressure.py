"""Memory pressure: attributes kills in a full container to the runs that caused them.

The kernel counts them for the container as a whole and ends any process in it. A run that used up
its memory, or was killed itself, claims those of its time; a run beside it that ended by itself is
then known to be whole, and only kills that nobody claims spoil it.
"""

from __future__ import annotations

import mmap
import os
import signal

from ..proc import number, rounds

# cgroup 2, cgroup 1
_COUNTERS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
)
_NUMBER_BYTES = 8
_CLAIM_S = 1.0  # in which the run to blame, which the kernel just ended, says so


class Claims:
    """The kills that each slot says its last greedy run caused, as a range of their numbers: one
    memory, of all slots.

    Args:
        num_slots: that share it; made before they are forked.
    """

    def __init__(self, num_slots: int) -> None:
        # of each slot, the number of kills before its claim and the last that it claims
        self._bounds = memoryview(mmap.mmap(-1, 2 * _NUMBER_BYTES * num_slots)).cast("Q")

    def put(self, index: int, before: int, last: int) -> None:
        """Slot ``index`` claims the kills after ``before`` up to ``last``."""
        # first, so that a range that is half written is empty
        self._bounds[2 * index] = before
        self._bounds[2 * index + 1] = last

    def cover(self, before: int, last: int) -> bool:
        """Whether each kill after ``before`` up to ``last`` is claimed."""
        ranges = []
        for at in range(0, len(self._bounds), 2):
            end = self._bounds[at + 1]  # first, as it is written last
            ranges.append((self._bounds[at], end))
        for start, end in sorted(ranges):
            if start <= before < end:
                before = end
        return before >= last


class Pressure:
    """One slot's view of it.

    Args:
        claims: of all slots of the container.
        index: of this one.
    """

    def __init__(self, claims: Claims, index: int) -> None:
        self._claims = claims
        self._index = index
        self._path = next((path for path in _COUNTERS if os.path.exists(path)), None)
        self._before = 0

    def begin(self) -> None:
        """A run begins."""
        self._before = self._kills()

    def spoils(self, status: str, killed_by: int | None) -> bool:
        """Whether the run that ended may have been harmed by what others used.

        Args:
            status: of its result; one that used up its memory caused the kills of its time.
            killed_by: the signal that ended its first process, if one did.
        """
        last = self._kills()
        if last == self._before:
            return False
        if status == "oom" or (status == "killed" and killed_by == signal.SIGKILL):
            self._claims.put(self._index, self._before, last)
            return status == "killed"
        looks = rounds(_CLAIM_S, 0.02)
        return not any(self._claims.cover(self._before, last) for _ in looks)

    def _kills(self) -> int:
        if self._path is None:
            return 0  # the container does not say (gVisor)
        with open(self._path, "rb") as file:
            return number(file.read(), b"oom_kill ")
