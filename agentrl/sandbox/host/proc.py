"""Processes: finds, measures, marks and ends them by proc(5).

Any process may end while it is looked at. The mark is a value of proc_pid_coredump_filter(5):
inherited over fork and exec, changed by a write to ``/proc`` alone, which the code may not do, and
of no other use, since the code may not dump core. As long as its host lives, a marked process is
below it: orphans come to the slot, then to the supervisor. One that is below no host is what a host
left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from resource import struct_rusage

from .confine.libc import prctl


def read(pid: int | str, name: str, *, strict: bool = False) -> bytes:
    """A file of a process; empty where it is gone or, unless ``strict``, cannot be read for any
    reason.

    Raises:
        OSError: ``strict``, and the process is there.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""
    except OSError:
        if strict:
            raise
        return b""


def stat(pid: int | str, *, strict: bool = False) -> list[bytes]:
    """Fields of proc_pid_stat(5) from the third on; empty where :func:`read` is."""
    return read(pid, "stat", strict=strict).rpartition(b")")[2].split()


def number(lines: bytes, name: bytes) -> int:
    """The whole number behind the name that begins a line; 0 where no line does."""
    found = (line for line in lines.split(b"\n") if line.startswith(name))
    return next((int(line.split()[1]) for line in found), 0)


def rounds(seconds: float, pause_s: float) -> Iterator[None]:
    """One round after another until the time is over, with a pause before each but the first."""
    end = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() > end:
            return
        time.sleep(pause_s)


@contextlib.contextmanager
def opened(path: str, flags: int, *, dir_fd: int | None = None) -> Iterator[int]:
    """The descriptor of a file or folder, closed at the end of the block; children of exec do not
    get it.

    Raises:
        OSError: it cannot be opened.
    """
    with owned(os.open(path, flags | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        yield fd


@contextlib.contextmanager
def owned(fd: int) -> Iterator[int]:
    """A descriptor that is closed at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


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
    # The wake-up descriptor is written to only where Python has a handler.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    if _LINUX:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return wake


def _children_by_scan(pid: int) -> list[int]:
    parents = {name: stat(name)[1:2] for name in os.listdir("/proc") if name.isdigit()}
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
    lines = read(pid, "status", strict=True)
    return 1024 * sum(number(lines, name) for name in _MADE)


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
    for _ in rounds(deadline_s, 0.001):
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
        # All are stopped before one is ended: a process that runs could fork meanwhile.
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
    fields = stat(pid, strict=True)
    return not fields or fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)


# in the command line of every process of a host
HOST_TITLE = "agentrl-sandbox-host"
_MARK = b"0x155"
_MARKED = b"00000155\n"
_FILE = "coredump_filter"
_ROUND_S = 0.005


def mark_self() -> None:
    """Mark this process, and with it all that it will start."""
    with (
        # a kernel without core dumps
        contextlib.suppress(FileNotFoundError),
        opened(f"/proc/self/{_FILE}", os.O_WRONLY) as fd,
    ):
        os.write(fd, _MARK)


def orphans() -> set[int]:
    """Marked processes below no host, as far as this user may end them; those of other pid
    namespaces left out.
    """
    return {
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if _is_marked(pid) and _is_orphan(pid)
    }


def end_orphans(deadline_s: float) -> tuple[set[int], set[int]]:
    """End them; those that were found, and of those the ones that are left after so many
    seconds.
    """
    ended: set[int] = set()
    for _ in rounds(deadline_s, _ROUND_S):
        found = orphans()
        if not found:
            break
        ended |= found
        end_together(found)
    return ended, found


def end_together(pids: Collection[int]) -> None:
    """Kill those that this user may. All are stopped before one is ended: a process that runs could
    fork meanwhile.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _is_marked(pid: int) -> bool:
    # empty where it has ended, or is the kernel's own
    return read(pid, _FILE) == _MARKED


def _is_orphan(pid: int) -> bool:
    status = _status(pid)
    if (
        not status
        or status[b"State"].startswith((b"Z", b"X"))
        or len(status[b"NSpid"].split()) > 1
    ):
        return False
    if os.geteuid() not in (0, int(status[b"Uid"].split()[0])):
        return False
    while (parent := int(status[b"PPid"])) > 1:
        if _is_host(parent):
            return False
        if not (status := _status(parent)):
            # it ended in this moment: the next look tells where its children went
            return False
    return True


def _is_host(pid: int) -> bool:
    """Whether it is a supervisor or a slot; what the code started may bear any name, and its
    mark.
    """
    words = read(pid, "cmdline").split(b"\0")
    return HOST_TITLE.encode() in words and not _is_marked(pid)


def _status(pid: int) -> dict[bytes, bytes]:
    """proc_pid_status(5); empty where there is no such process."""
    lines = read(pid, "status").splitlines()
    return {
        name: value.strip() for name, _, value in (line.partition(b":") for line in lines)
    }
