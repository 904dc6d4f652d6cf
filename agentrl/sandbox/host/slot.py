"""One sandbox: a process that drives the runs of one session, one at a time.

It has a uid of its own where the host is root, and a Landlock domain around which no signal passes,
so that one ``kill(-1)`` ends whatever a run left behind, and nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn

from . import folder, frames, landlock, tree
from .child import Confinement
from .execution import HostFailure, execute

_MAX_LISTED = 10_000
_END_S = 2.0


@dataclass(frozen=True)
class SlotConfig:
    """What the supervisor decides about a slot before it forks it.

    Attributes:
        root: the slot's folder, which holds ``work`` and ``tmp``.
        uid: the uid to run under; None keeps the owner's.
        abi: the Landlock ABI; None runs unconfined.
        read_exec: folders and files that the code may read and execute.
        read: folders and files that the code may read.
        path: the value of PATH for the code.
        env: further variables of every run.
        keep: descriptors that the child inherits, for a standard library behind a closed folder.
        process_base: processes that the user runs already, for RLIMIT_NPROC; None where the uid is the slot's own.
    """

    root: str
    uid: int | None
    abi: int | None
    read_exec: tuple[str, ...]
    read: tuple[str, ...]
    path: str
    env: dict[str, str]
    keep: tuple[int, ...]
    process_base: int | None


class Slot:
    """The state of a slot process; see the module."""

    def __init__(self, sock: socket.socket, config: SlotConfig) -> None:
        self.sock = sock
        self.config = config
        self.work = os.path.join(config.root, "work")
        self.temp = os.path.join(config.root, "tmp")
        self.confinement: Confinement | None = None
        self.scoped = False
        self.requests: deque[tuple[frames.Header, list[bytes]]] = deque()
        self.cancelled: set[int] = set()
        self.owner_gone = False
        self._decoder = frames.Decoder()
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        tree.become_subreaper()

    def enter(self) -> None:
        """Give up the owner's rights; everything after this runs with the slot's."""
        config = self.config
        ruleset = signals = None
        if config.abi is not None:
            ruleset = landlock.run_ruleset(
                config.abi,
                write=(self.work, self.temp),
                read_exec=config.read_exec,
                read=(*config.read, "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
                rw=("/dev/null",),
            )
            signals = landlock.signal_ruleset(config.abi)
        if config.uid is not None:
            os.setgroups([])
            os.setresgid(config.uid, config.uid, config.uid)
            os.setresuid(config.uid, config.uid, config.uid)
        if config.abi is None or ruleset is None:
            return
        landlock.no_new_privs()
        if signals is not None:
            landlock.restrict_self(config.abi, signals)
            os.close(signals)
            self.scoped = _is_refused(os.getppid())
        self.confinement = Confinement(abi=config.abi, ruleset=ruleset, own_uid=config.uid is not None)

    def receive(self) -> None:
        """Read what the owner sent; requests queue, a cancel is noted, end of file ends the slot."""
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

    def answer(self, header: frames.Header, blobs: list[bytes]) -> None:
        """Do one request and send its reply."""
        reply: dict[str, Any] = {"id": header["id"]}
        out: list[bytes] = []
        try:
            for path in (self.work, self.temp):
                os.chmod(path, 0o700)  # code that closed its own folder must not make the next request fail
            match header["op"]:
                case "run":
                    result, out = execute(self, header, blobs)
                    reply |= result
                case "write":
                    folder.write_file(self.work, header["path"], blobs[0])
                case "read":
                    out = [folder.read_file(self.work, header["path"], header["limit"])]
                case "list":
                    reply["listed"] = folder.list_files(self.work, _MAX_LISTED)
                case unknown:
                    reply["failed"] = f"the slot knows no request {unknown!r}"
        except folder.PathRefused as error:
            reply["refused"] = str(error)
        except HostFailure as error:
            reply["failed"] = str(error)
        except (OSError, MemoryError) as error:
            reply["failed"] = f"{header['op']}: {error!r}"
        self.cancelled.discard(header["id"])
        self.send(reply, out)

    def kill_all(self) -> None:
        """End whatever runs in this slot but the slot itself."""
        if self.scoped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # one step: no fork of a bomb escapes it


def _is_refused(pid: int) -> bool:
    """Whether a signal to ``pid`` is refused: proof that ``kill(-1)`` stays in this domain and uid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    return False


def slot_main(sock: socket.socket, config: SlotConfig) -> NoReturn:
    """The body of a slot process; never returns."""
    exit_code = 1
    try:
        _serve(Slot(sock, config))
        exit_code = 0
    finally:
        os._exit(exit_code)


def _serve(slot: Slot) -> None:
    try:
        slot.enter()
    except OSError as error:
        slot.send({"id": 0, "failed": f"the slot could not give up its rights: {error}"}, [])
        return
    slot.send({"id": 0, "scoped": slot.scoped}, [])
    gc.freeze()
    while not slot.owner_gone:
        if slot.requests:
            slot.answer(*slot.requests.popleft())
        else:
            slot.receive()
    slot.kill_all()
    tree.kill_below((), None, _reap, _END_S)


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
