"""Lifeline: runs a server as long as its owner lives, and leaves nothing of it behind.

``python supervise.py OWNER STATUS COMMAND...``, with a pipe as standard input and ``MARKER`` in the
environment.

- It forks twice, so that it is no child of its owner: Ray ends a worker's children before the
  worker's own end is seen.
- It is single-threaded. The server is forked from its main thread with ``PR_SET_PDEATHSIG``, so
  that the kernel ends the server where the supervisor itself is killed, and looks for its parent
  afterwards, in case that came first.
- The server leads a session of its own. When the pipe ends, or the owner's process, or the server,
  all processes of that session and all that bear the marker are ended: first asked, then killed.
  Then its temporary folder is removed, and what it left in shared memory.
- The pipe STATUS gets ``pids LIFELINE SERVER`` and, at the end, ``exit CODE``.

Standard library alone: any interpreter runs this file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARKER = "AGENTRL_SERVER"
"""The environment variable that all processes of a server inherit: ``owner/seconds/folder``; the
seconds of the clock say when it was started, the folder is its temporary one."""

_GRACE_S = 2.0
_POLL_S = 0.2
# between looks at what the server has in shared memory, in case it dies at once
_LOOK_S = 2.0
_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = "/dev/shm"
_LISTING = ".agentrl-shared-memory"
# ends by itself, and only then removes what the others shared
_TRACKER = b"multiprocessing.resource_tracker"


def main(owner: int, status: int, command: list[str]) -> int:
    """Returns the server's exit code, 0 where its owner ended it; a shell's 127 where there is no
    such command.
    """
    watched = [sys.stdin.fileno(), *_watch(owner)]
    if os.fork():
        os._exit(0)
    os.setsid()
    server = _start(command, keep_out=[status])
    marker = os.environ[MARKER]
    looked = 0.0
    _say(status, f"pids {os.getpid()} {server}")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(1))
    code: int | None = None
    while code is None and not asked:
        ready = select.select(watched, [], [], _POLL_S)[0]
        if any(one != sys.stdin.fileno() or not os.read(one, 1) for one in ready):
            break
        code = _exit_code(server, reap=False)
        if time.monotonic() - looked > _LOOK_S:
            looked = time.monotonic()
            note_shared(marker, server_processes(marker, server, is_ours=True))
    end_server(marker, server, is_ours=True)
    _exit_code(server, reap=True)
    _say(status, f"exit {code or 0}")
    return code or 0


def end_server(marker: str, session: int | None = None, *, is_ours: bool = False) -> None:
    """Ends every process of a server: asked, then killed; but for the trackers of its shared
    memory, which have time to clean up. Then what it left is removed. Arguments as of
    ``server_processes``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + _GRACE_S
        asked = set[int]()
        while members := server_processes(marker, session, is_ours=is_ours):
            note_shared(marker, members)
            late = time.monotonic() > end
            for pid in members:
                is_tracker = _TRACKER in _read(pid, "cmdline")
                if pid not in asked and (
                    number == signal.SIGTERM or late or not is_tracker
                ):
                    asked.add(pid)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            if late and number == signal.SIGTERM:
                break
            time.sleep(_POLL_S / 4)
    remove_leftovers(folder_of(marker))


def server_processes(
    marker: str, session: int | None = None, *, is_ours: bool = False
) -> list[int]:
    """Pids of the processes that bear a server's marker, and of all of their sessions; zombies are
    none.

    Args:
        marker: the server's.
        session: that it had.
        is_ours: whether that session is certainly still the server's, since its leader was not
            reaped. Otherwise the number may be another session's by now: one is left alone whose
            leader lives and does not bear the marker.
    """
    wanted = f"{MARKER}={marker}".encode()
    sessions: dict[int, int] = {}
    for pid in processes():
        # proc(5)'s stat from the third field on: state, parent, group, session
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if pid != os.getpid() and fields and fields[0] not in (b"Z", b"X"):
            sessions[pid] = int(fields[3])
    marked = {pid for pid in sessions if wanted in environment(pid)}
    own = {sessions[pid] for pid in marked} | ({session} if session is not None else set())
    own = {
        one
        for one in own
        if one in marked or one not in sessions or (is_ours and one == session)
    }
    return [pid for pid, its in sessions.items() if pid in marked or its in own]


def folder_of(marker: str) -> str:
    """A server's temporary folder."""
    return marker.split("/", 2)[2]


def note_shared(marker: str, pids: Iterable[int]) -> None:
    """Adds what processes have in shared memory to a list in their server's folder, for the process
    that cleans up after it.
    """
    with contextlib.suppress(OSError):
        listing = Path(folder_of(marker), _LISTING)
        noted = set(listing.read_text().split("\n")) if listing.exists() else set()
        if new := _shared_files(pids, float(marker.split("/", 2)[1])) - noted:
            with listing.open("a") as file:
                file.write("".join(f"{path}\n" for path in sorted(new)))


def remove_leftovers(folder: str) -> None:
    """Removes a server's temporary folder, and what it left in shared memory that nobody else has
    open.
    """
    with contextlib.suppress(OSError):
        left = {
            path
            for path in Path(folder, _LISTING).read_text().split("\n")
            if os.path.exists(path)
        }
        if left:
            left -= _shared_files(processes())
        for path in left:
            with contextlib.suppress(OSError):
                os.unlink(path)
    shutil.rmtree(folder, ignore_errors=True)


def _start(command: list[str], keep_out: list[int]) -> int:
    """Forks the server: leader of a session, ended by the kernel with this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        # Standard input is the pipe by which the supervisor alone hears of the owner's end.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        # A server that had the status pipe would keep it from ending with the supervisor.
        for one in keep_out:
            os.close(one)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _say(status: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        # the owner is gone
        os.write(status, f"{text}\n".encode())


def _watch(owner: int) -> list[int]:
    """What is readable once the owner has ended, where the system has it; a fork of the owner may
    keep the pipe.
    """
    if os.getppid() != owner:
        # it ended already
        os._exit(1)
    try:
        return [os.pidfd_open(owner)]
    except (AttributeError, OSError):
        return []


def _exit_code(pid: int, *, reap: bool) -> int | None:
    """The exit code of a child, negative for a signal; None while it runs. Unreaped, it keeps its
    number.
    """
    done = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | (0 if reap else os.WNOWAIT))
    if done is None:
        return None
    return done.si_status if done.si_code == os.CLD_EXITED else -done.si_status


def processes() -> list[int]:
    """The pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment(pid: int) -> list[bytes]:
    """The variables with which a process was started."""
    return _read(pid, "environ").split(b"\0")


def marker_of(pid: int) -> str:
    """The marker of the server that a process belongs to; empty for others and for zombies."""
    start = f"{MARKER}=".encode()
    found = (one.removeprefix(start) for one in environment(pid) if one.startswith(start))
    return next(found, b"").decode(errors="replace")


def _read(pid: int, name: str) -> bytes:
    """A file of proc(5); empty where the process has ended, or belongs to someone else."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _shared_files(pids: Iterable[int], since: float = 0.0) -> set[str]:
    """Objects of shared memory that processes have mapped or open, made after a moment.

    A folder below /dev/shm holds no such objects, but a model that someone keeps there.
    """
    found: set[str] = set()
    for pid in pids:
        maps = _read(pid, "maps").decode(errors="replace").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in maps if _SHARED_MEMORY in line}
        with contextlib.suppress(OSError):
            paths |= {os.readlink(one.path) for one in os.scandir(f"/proc/{pid}/fd")}
        for path in paths:
            with contextlib.suppress(OSError):
                if (
                    os.path.dirname(path) == _SHARED_MEMORY
                    and os.lstat(path).st_ctime >= since
                ):
                    found.add(path)
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
