"""Process marks: find a process that runs code after its sandbox and host are gone.

The mark is a value of proc_pid_coredump_filter(5): inherited over fork and exec, changed by a write
to ``/proc`` alone, which the code may not do, and of no other use, since the code may not dump
core. As long as its host lives, a marked process is below it: orphans come to the slot, then to the
supervisor. One that is below no host is what a host left.
"""

from __future__ import annotations

import contextlib
import os
import signal

from .. import proc

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
        proc.opened(f"/proc/self/{_FILE}", os.O_WRONLY) as fd,
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
    for _ in proc.rounds(deadline_s, _ROUND_S):
        found = orphans()
        if not found:
            break
        ended |= found
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
    return ended, found


def _is_marked(pid: int) -> bool:
    # empty where it has ended, or is the kernel's own
    return proc.read(pid, _FILE) == _MARKED


def _is_orphan(pid: int) -> bool:
    status = _status(pid)
    if not status or status[b"State"].startswith((b"Z", b"X")) or len(status[b"NSpid"].split()) > 1:
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
    words = proc.read(pid, "cmdline").split(b"\0")
    return HOST_TITLE.encode() in words and not _is_marked(pid)


def _status(pid: int) -> dict[bytes, bytes]:
    """proc_pid_status(5); empty where there is no such process."""
    lines = proc.read(pid, "status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
