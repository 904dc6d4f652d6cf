"""Memory bounds beside the rlimit: no huge pages, first to die, a cgroup where there is one.

Without one, runs share the memory of a container or of the owner. The kernel counts kills for it as
a whole and ends any process in it. A run that used up its memory, or was killed itself, claims
those of its time; a run beside it that ended by itself is then known to be whole, and only kills
that nobody claims spoil it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
from collections.abc import Sequence

from ..proc import number, rounds
from .libc import checked, libc, prctl

_PR_SET_THP_DISABLE = 41
_FIRST_TO_DIE = 1000
_TMPFS = 0x01021994
_RAMFS = 0x858458F6
# the kernel's own for a run's processes, and their copies of the warm interpreter's pages
_SPARE_BYTES = 64 * 2**20


def without_huge_pages() -> None:
    """No huge page for this process and its descendants: one of its small pages, held anywhere,
    would keep all of it.

    The filter of a run lets nobody switch them on again.

    Raises:
        OSError: the kernel refused.
    """
    try:
        prctl(_PR_SET_THP_DISABLE, 1)
    except OSError as error:
        # a kernel without huge pages to switch off (gVisor)
        if error.errno != errno.EINVAL:
            raise


def die_first() -> None:
    """Let the kernel end this process and its descendants before the owner of its host, where
    memory runs out.

    No guarantee rests on it, so that a /proc that is missing or cannot be written to is no failure.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_FIRST_TO_DIE))


def withhold_zero() -> None:
    """Close ``/dev/zero`` of this container to the sandboxes' uids: a mapping of it is shared
    memory without a file.

    Landlock closes it as well; this is for kernels without. Where the engine keeps the node for
    itself, the probe sees what can be held, and ``memory`` is not claimed.
    """
    with contextlib.suppress(OSError):
        os.chmod("/dev/zero", 0)


def lies_in_memory(path: str) -> bool:
    """Whether what is written below ``path`` takes memory."""
    # struct statfs; its first word is the type
    found = ctypes.create_string_buffer(512)
    checked(libc.statfs(path.encode(), found))
    return ctypes.c_ulong.from_buffer(found).value in (_TMPFS, _RAMFS)


class Bound:
    """The memory cgroup of one sandbox: its runs are in it, the slot that drives them is not.

    The kernel kills in it where this limit is reached, and also where a cgroup above it or the
    machine has no memory left. Its own count of reached limits tells which: only the first is the
    code's doing. Version 1 counts there also what made room for itself by dropping cached files, so
    a run that did so before it was killed is blamed in both cases.

    Args:
        files: descriptors of the processes in it, its limit, its count of kills and its count of
            reached limits, as the owner opened them.
        disk: the sandbox's files take memory, which is charged here too.
    """

    def __init__(self, files: Sequence[int], *, disk: bool) -> None:
        self._procs, self._limit, self._kills, self._hits = files
        self._disk = disk
        self._bytes = 0
        self._seen = self._counts()

    def begin(self, limits: dict[str, int], num_runs: int) -> None:
        """Let the next run have what its limits allow, beside interpreters that rest.

        Raises:
            OSError: the kernel refused.
        """
        wanted = (
            num_runs * (limits["memory_bytes"] + limits["memory_bytes"] // 4)
            + (limits["disk_bytes"] if self._disk else 0)
            + _SPARE_BYTES
        )
        if wanted != self._bytes:
            try:
                os.write(self._limit, str(wanted).encode())
                self._bytes = wanted
            except OSError as error:
                # files of earlier runs hold more: the old limit stays
                if error.errno != errno.EBUSY:
                    raise
        self._seen = self._counts()

    def enter(self) -> None:
        """Move the calling process into it.

        Raises:
            OSError: the kernel refused.
        """
        os.write(self._procs, b"0")

    @property
    def is_spent(self) -> bool:
        """Whether the kernel ended a process in it since :meth:`begin`, for its own limit."""
        kills, hits = self._counts()
        return kills > self._seen[0] and hits > self._seen[1]

    def harmed(self, status: str = "", killed_by: int | None = None) -> bool:
        """Whether the kernel ended a process in it since :meth:`begin`, for want of memory
        elsewhere.
        """
        kills, hits = self._counts()
        return kills > self._seen[0] and hits == self._seen[1]

    def _counts(self) -> tuple[int, int]:
        """Kills, and reached limits."""
        hits = os.pread(self._hits, 4096, 0)
        # a lone number in version 1
        reached = number(hits, b"oom ") if b" " in hits else int(hits)
        return number(os.pread(self._kills, 4096, 0), b"oom_kill "), reached


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
