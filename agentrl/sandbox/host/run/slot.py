"""Slot: the state of the process that drives the runs of one sandbox.

It has its own uid where the host is root, and a Landlock domain that no signal leaves, so that one
``kill(-1)`` ends everything that a run left behind, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass

from .. import files, frames, proc
from ..confine import landlock, memory, seccomp, uids
from ..confine.libc import prctl
from ..confine.memory import Claims, Pressure
from ..confine.namespaces import TEMP, WORK, SlotNamespaces
from .session import InterpreterSession

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True)
class SlotConfig:
    """What the supervisor decides about a slot before it forks it.

    Attributes:
        root: holds ``work`` and ``tmp``, as the slot sees them.
        uid: the uid to run under; None keeps the owner's.
        abi: the Landlock ABI, 0 without one; None runs unconfined.
        namespaced: the slot is in namespaces of its own, and each run is to have its own.
        index: of the slot among those of the host.
        claims: of the kills in a memory that the slots share.
        read_exec: folders and files that the code may read and execute.
        read: folders and files that the code may read.
        proxy_port: where the code finds the proxy on its loopback interface; None gives it no
            socket.
        path: the value of PATH for the code.
        env: further variables of every run.
        keep: descriptors that the child inherits, for a standard library behind a closed folder.
        cgroup: descriptors of the memory cgroup of its runs; where there is none, of the count of
            kills in the owner's, or nothing.
        process_base: processes that the user runs already, for RLIMIT_NPROC; None where the uid is
            the slot's own.
        bounded: the slot's folders are a file system of their own, whose size is its limit.
    """

    root: str
    uid: int | None
    abi: int | None
    namespaced: bool
    index: int
    claims: Claims
    read_exec: tuple[str, ...]
    read: tuple[str, ...]
    proxy_port: int | None
    path: str
    env: dict[str, str]
    keep: tuple[int, ...]
    cgroup: tuple[int, ...]
    process_base: int | None
    bounded: bool

    def filter(self) -> bytes:
        """The seccomp program of a run, for the process that asks."""
        # no file and no process of others is in sight in namespaces, whatever Landlock can do
        abi = seccomp.NEWEST_ABI if self.namespaced else self.abi or 0
        return seccomp.build_filter(
            own_uid=self.namespaced or self.uid is not None,
            abi=abi,
            pid=os.getpid() if seccomp.names_pid(abi) else None,
            proxied=self.proxy_port is not None,
            preallocates=self.namespaced,
        )


class Slot:
    """The state of a slot process; see the module."""

    def __init__(self, sock: socket.socket, config: SlotConfig) -> None:
        self.sock = sock
        self.config = config
        self.pid = os.getpid()
        self.work = os.path.join(config.root, "work")
        self.temp = os.path.join(config.root, "tmp")
        self.own_folders = (self.work, self.temp)
        # by a run
        self.seen_work, self.seen_temp = (
            (WORK, TEMP) if config.namespaced else self.own_folders
        )
        self.namespaces: SlotNamespaces | None = None
        self.ruleset: int | None = None
        self.memory: memory.Bound | Pressure
        self.bound: memory.Bound | None = None
        self.scoped = False
        self.session: InterpreterSession | None = None
        # whether an interpreter ended and no reply said so
        self.lost_unsaid = False
        # Of the owner, in order; read and served by this one thread.
        self.requests: deque[frames.Frame] = deque()
        self.cancelled: set[int] = set()
        self.owner_gone = False
        self._decoder = frames.FrameDecoder()
        self.wake = proc.adopt_orphans()

    def enter(self) -> None:
        """Give up the owner's rights; everything after this runs with the slot's."""
        config = self.config
        memory.die_first()
        if config.namespaced:
            self.namespaces = SlotNamespaces()
            # the first process of its pid namespace
            self.scoped = True
        if len(config.cgroup) > 1:
            disk = memory.lies_in_memory(self.work)
            self.memory = self.bound = memory.Bound(config.cgroup, disk=disk)
        else:
            self.memory = Pressure(config.claims, config.index, *(config.cgroup or (None,)))
        signals = None
        if config.abi:
            self.ruleset = landlock.run_ruleset(
                config.abi,
                write=self.own_folders,
                read_exec=config.read_exec,
                read=config.read,
                tcp_port=config.proxy_port,
            )
            signals = None if config.namespaced else landlock.signal_ruleset(config.abi)
        if config.uid is not None and not config.namespaced:
            uids.become(config.uid)
            # or the kernel hides its runs' /proc files from it; Landlock hides both from the code
            if config.abi:
                prctl(_PR_SET_DUMPABLE, 1)
        if config.abi is None:
            return
        # which Landlock and seccomp ask for
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        memory.without_huge_pages()
        if signals is not None:
            landlock.restrict_self(config.abi, signals)
            os.close(signals)
            self.scoped = _is_refused(os.getppid())

    def receive(self) -> None:
        """Read what the owner sent; requests queue, a cancel is noted, end of file ends the
        slot.
        """
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self.owner_gone = True
            return
        for header, blobs in self._decoder.feed(data):
            if header["op"] == "cancel":
                self.cancelled.add(header["target"])
            else:
                self.requests.append((header, blobs))

    def send(self, header: frames.Header, blobs: list[bytes]) -> None:
        """Answer the owner; blocks while the owner reads slowly."""
        try:
            self.sock.sendall(frames.encode(header, blobs))
        except (BrokenPipeError, ConnectionResetError):
            self.owner_gone = True

    def fork(self) -> int:
        """Fork a run's process, in namespaces of its own where the slot is namespaced; it finds no
        temporary files.
        """
        resting = self.resting_pid
        if not resting:
            # the folder itself stays: Landlock's rule is about it
            files.empty(self.temp)
        if self.namespaces is None:
            return os.fork()
        self.namespaces.firsts = {
            pid: first for pid, first in self.namespaces.firsts.items() if pid == resting
        }
        return self.namespaces.fork()

    def with_first(self, pid: int) -> set[int]:
        """A child, and the first process of its pid namespace where it has its own."""
        return {pid} if self.namespaces is None else {pid, self.namespaces.firsts[pid]}

    @property
    def resting_pid(self) -> int:
        """The interpreter that keeps its variables, once it was forked; else 0."""
        return 0 if self.session is None else self.session.pid

    @property
    def num_own_processes(self) -> int:
        """What RLIMIT_NPROC counts beside the next run's own: the slot, a resting interpreter, idle
        first processes.
        """
        num_own = 2 if self.resting_pid else 1
        return num_own if self.namespaces is None else 2 * num_own

    def end_session(self) -> None:
        """End the interpreter that keeps its variables, if there is one."""
        if self.session is not None:
            if self.session.pid:
                pid = self.session.pid
                # a first process, the later one here, ends when the others have been reaped
                pids = [pid, *(self.with_first(pid) - {pid})]
                for pid in pids:
                    proc.kill(pid)
                for pid in pids:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            self.forget_session()

    def forget_session(self) -> None:
        """The interpreter has ended."""
        if self.session is not None:
            self.session.close()
            self.session = None

    def kill_all(self) -> None:
        """End whatever runs in this slot but the slot itself."""
        if self.scoped:
            with contextlib.suppress(ProcessLookupError):
                # one step: no fork of a bomb escapes it
                os.kill(-1, signal.SIGKILL)


def _is_refused(pid: int) -> bool:
    """Whether a signal to ``pid`` is refused: proof that ``kill(-1)`` stays in this domain and
    uid.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    return False
