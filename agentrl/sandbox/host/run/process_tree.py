"""Process tree: finds, measures and ends the processes below one process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection
from resource import struct_rusage

from .. import proc
from ..confine.libc import prctl

_PR_SET_CHILD_SUBREAPER = 36
# in KiB (proc_pid_status(5))
_MADE = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_LINUX = sys.platform == "linux"


def adopt_orphans() -> int:
    """Orphans below this process become its children (Linux; elsewhere groups must do).

    Returns:
        A descriptor that can be read when a child has ended.
    """
    wake, wake_write = os.pipe()
    for fd in (wake, wake_write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    if _LINUX:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return wake


def _children_by_scan(pid: int) -> list[int]:
    parents = {name: proc.stat(name)[1:2] for name in os.listdir("/proc") if name.isdigit()}
    return [int(name) for name, parent in parents.items() if parent == [b"%d" % pid]]


def children(pid: int) -> list[int]:
    """The living and unreaped children of every thread of ``pid``; empty where there is no
    /proc.
    """
    if not _LINUX:
        return []
    try:
        found = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
        return found
    except FileNotFoundError:
        # the process is gone, or a kernel without CONFIG_PROC_CHILDREN
        return _children_by_scan(pid) if os.path.exists(f"/proc/{pid}") else []
    except ProcessLookupError:
        return []


def descendants(pid: int) -> list[int]:
    """Everything below ``pid``, nearest first."""
    found: list[int] = []
    pending = [pid]
    while pending:
        below = children(pending.pop())
        found += below
        pending += below
    return found


def memory_beyond_own(pids: Collection[int]) -> int:
    """Bytes that these processes made, in memory or swapped out, beyond what each inherits from
    this one.

    What several of them share is counted for each: nothing that they can read tells how many share
    it.
    """
    own = _made_bytes(os.getpid())
    return sum(max(0, _made_bytes(pid) - own) for pid in pids)


def _made_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process, without the files that it maps; 0 where it is
    gone.
    """
    lines = proc.read(pid, "status", strict=True)
    return 1024 * sum(proc.number(lines, name) for name in _MADE)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def reap_all(each: Callable[[int, int, struct_rusage], object] = lambda *_: None) -> bool:
    """Collect every child that has ended; whether one is left.

    Args:
        each: is told of each: pid, status, usage.
    """
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        each(pid, status, used)


def kill_below(
    keep: Collection[int],
    group: int | None,
    reap: Callable[[], object],
    deadline_s: float,
    *,
    bare: Collection[int] = (),
) -> bool:
    """End and reap every descendant of this process that is not below one of ``keep``.

    Walks the tree until it is empty: a fork bomb makes children while it is walked, but each round
    stops what it found before killing it, and the process limit bounds the rest.

    Args:
        keep: children of this process that stay.
        group: a process group to kill as well; all there is to go by without /proc.
        reap: collects the children that have ended.
        deadline_s: how long to go on.
        bare: those of ``keep`` that make no children now, and below which nothing stays either;
            what they have to reap may.

    Returns:
        Whether nothing is left.
    """
    for _ in proc.rounds(deadline_s, 0.001):
        if group is not None:
            # empty, or only zombies are left (macOS then answers EPERM)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        own = [pid for pid in children(os.getpid()) if pid not in keep]
        own += [
            pid
            for parent in bare
            for pid in children(parent)
            if pid not in keep and not _is_zombie(pid)
        ]
        if not own:
            return True
        below = [deeper for pid in own for deeper in descendants(pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in own + below:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        reap()
    return False


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, with all its threads: that the first of them ended alone looks nearly
    the same.
    """
    fields = proc.stat(pid, strict=True)
    return not fields or fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)
