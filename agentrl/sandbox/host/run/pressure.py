"""Memory pressure: attributes kills in a memory that runs share to those that caused them.

That memory is a container's, or the owner's where a sandbox has no cgroup of its own. The kernel
counts kills for it as a whole and ends any process in it. A run that used up its memory, or was
killed itself, claims those of its time; a run beside it that ended by itself is then known to be
whole, and only kills that nobody claims spoil it.
"""

from __future__ import annotations

import mmap
import os
import signal

from ..proc import number, rounds

# of a container, in cgroup 2 and cgroup 1
_COUNTERS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
)
_NUMBER_BYTES = 8
# in which the run to blame, which the kernel just ended, says so
_CLAIM_S = 1.0


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
            # first, as it is written last
            end = self._bounds[at + 1]
            ranges.append((self._bounds[at], end))
        for start, end in sorted(ranges):
            if start <= before < end:
                before = end
        return before >= last


class Pressure:
    """One slot's view of it.

    Args:
        claims: of all slots.
        index: of this one.
        counter: a descriptor of the file that counts the kills; None looks for a container's.
    """

    # each process of a run, and the watch over all of them, ends at its own limit
    is_spent = False

    def __init__(self, claims: Claims, index: int, counter: int | None) -> None:
        self._claims = claims
        self._index = index
        path = next((path for path in _COUNTERS if os.path.exists(path)), None)
        if counter is None and path is not None:
            counter = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._counter = counter
        self._before = self._kills()

    def begin(self, limits: dict[str, int], num_runs: int) -> None:
        """A run begins."""
        self._before = self._kills()

    def harmed(self, status: str = "", killed_by: int | None = None) -> bool:
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
        if self._counter is None:
            # nothing tells (gVisor, macOS)
            return 0
        return number(os.pread(self._counter, 4096, 0), b"oom_kill ")
