"""Supervisor: the warm process that forks the slots, reaps them and cleans up after them."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from . import files, frames, proc
from .confine import landlock, memory, namespaces, seccomp, uids
from .confine.memory import Claims
from .interpreter import Interpreter, preload
from .run import child
from .run.slot import SlotConfig
from .run.slot_process import slot_main

_TICK_S = 1.0
_SLOT_END_S = 2.0
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_MAX_FDS = 16


class Refused(Exception):  # noqa: N818
    """This machine cannot be served; the owner names it to the user in one line."""


class SettingRefused(Refused):
    """A setting is to blame rather than the machine."""


@dataclass
class _SlotEntry:
    number: int
    index: int
    pid: int
    # a folder of this process's to remove
    root: str | None
    uid: int | None
    killed_at: float | None = None


class Supervisor:
    """See the module.

    Args:
        control: the owner's socket; its end of file ends everything.
        settings: the owner's first frame: ``confine``, ``abi_cap``, ``preload``, ``folders``; where
            they are given also ``namespaced``, ``proxied``, ``readable``, further folders that the
            code may read and execute, and ``roots``, file systems of which each slot gets one for
            itself. With roots, this is a container: it keeps what Landlock cannot, has a memory
            limit of its own, and its variables are those of every run.
    """

    def __init__(self, control: socket.socket, settings: frames.Header) -> None:
        self.control = control
        self.owner = os.getppid()
        self.slots: dict[int, _SlotEntry] = {}
        # ended, while something that they ran lives on
        self.unswept: list[_SlotEntry] = []
        self.cleaners: dict[int, _SlotEntry] = {}
        self.first_uid: int | None = None
        self.namespaced = bool(settings.get("namespaced"))
        self.roots = tuple(settings.get("roots", ()))
        self._fds: list[int] = []
        self._decoder = frames.FrameDecoder()
        abi = self._find_confinement(settings["abi_cap"]) if settings["confine"] else None
        env: dict[str, str] = {}
        if self.roots:
            memory.withhold_zero()
            env = _image_env()
        self.listener: socket.socket | None = None
        if settings.get("proxied"):
            self.listener = self._listen()
            url = "http://{}:{}".format(*self.listener.getsockname())
            env |= dict.fromkeys(_PROXY_VARIABLES, url)
        interpreter = Interpreter(
            other_uid=self.first_uid is not None and not self.namespaced,
            extra=tuple(settings["folders"]),
        )
        if failed := preload(tuple(settings["preload"])):
            raise SettingRefused(
                f"SandboxSpec.preload_modules: {failed}; correct the name or remove it"
            )
        self.base: str | None = None
        if not self.namespaced:
            self.base = tempfile.mkdtemp(prefix=settings["folder_prefix"])
            os.chmod(self.base, 0o711)
        self.wake = proc.adopt_orphans()
        child.warm_up()
        # of each slot, which is then given what is its own
        self.config = SlotConfig(
            root=namespaces.STORE,
            uid=self.first_uid,
            abi=abi,
            namespaced=self.namespaced,
            index=0,
            claims=Claims(len(self.roots) or uids.SLOTS),
            read_exec=(*interpreter.read_exec, *settings.get("readable", ())),
            read=interpreter.read,
            proxy_port=None if self.listener is None else self.listener.getsockname()[1],
            path=interpreter.path,
            env=env,
            keep=interpreter.keep,
            cgroup=(),
            process_base=None,
            bounded=self.namespaced or bool(self.roots),
        )
        if abi is not None:
            # made before any fork
            self.config.filter()
        # A collection in a fork would copy the pages that it shares with this process.
        gc.disable()
        gc.freeze()

    def _find_confinement(self, abi_cap: int | None) -> int:
        """The Landlock ABI to use, 0 for none, and the first uid of the slots."""
        abi = min(landlock.abi_version(), sys.maxsize if abi_cap is None else abi_cap)
        if not abi and not self.namespaced and not self.roots:
            raise Refused(
                "the kernel offers no Landlock (Linux 5.13 or later, landlock among its lsm=)"
            )
        if not seccomp.supported():
            raise Refused(f"the system call numbers of {os.uname().machine} are not known")
        if self.namespaced:
            self.first_uid = uids.first_mapped()
        elif os.getuid() == 0:
            reserved = uids.reserve()
            if reserved is None:
                raise Refused(uids.NONE_TO_SPARE)
            self.first_uid, self._reservation = reserved
        return abi

    def _listen(self) -> socket.socket:
        """The socket of the proxy, on a loopback interface that is the sandboxes' alone; the owner
        serves it.
        """
        if not self.namespaced:
            raise Refused(
                "a proxy alone bounds nothing here: the code would share this machine's network"
            )
        return socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve(self) -> None:
        """Until the owner is gone."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        self.reply(
            {
                "op": "ready",
                "abi": self.config.abi,
                "own_uid": self.first_uid is not None,
                "namespaced": self.namespaced,
                "bounded": self.config.bounded,
                "pid": os.getpid(),
                "base": self.base,
            }
        )
        # a fork of the owner may hold the socket open after its death
        while os.getppid() == self.owner:
            for fd, _ in poller.poll(_TICK_S * 1000):
                if fd == self.wake:
                    os.read(self.wake, 4096)
                elif not self.receive():
                    return
            self.reap()
            self.sweep()
            self.end_overdue()

    def receive(self) -> bool:
        """One read from the owner; False at its end."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 1 << 16, _MAX_FDS)
        except ConnectionResetError:
            return False
        self._fds += fds
        for header, _ in self._decoder.feed(data):
            if header["op"] == "open":
                sock = socket.socket(fileno=self._fds.pop(0))
                cgroup = [self._fds.pop(0) for _ in range(header.get("cgroup", 0))]
                self.open(header["slot"], sock, cgroup)
                for fd in cgroup:
                    os.close(fd)
            elif header["op"] == "listener" and self.listener is not None:
                with socket.socket(fileno=self._fds.pop(0)) as way:
                    socket.send_fds(way, [b"."], [self.listener.fileno()])
            elif header["op"] == "kill":
                for entry in self.slots.values():
                    if entry.number == header["slot"]:
                        entry.killed_at = time.monotonic()
                        proc.kill(entry.pid)
        return bool(data)

    def reply(self, header: frames.Header) -> None:
        try:
            self.control.sendall(frames.encode(header))
        except (BrokenPipeError, ConnectionResetError):
            # the next read sees the end of file
            return

    def open(self, number: int, sock: socket.socket, cgroup: Sequence[int]) -> None:
        """Fork a slot that listens on ``sock``, and has the descriptors of its cgroup where it has
        one.
        """
        with sock:
            num_slots = len(self.roots) or uids.SLOTS
            used = {
                entry.index
                for entry in (*self.slots.values(), *self.unswept, *self.cleaners.values())
            }
            try:
                if len(used) >= num_slots:
                    raise OSError(f"{num_slots} sandboxes are open already; close some")
                # taken in turn, so that a uid rests before another sandbox gets it
                index = next(
                    i % num_slots
                    for i in range(number, number + num_slots)
                    if i % num_slots not in used
                )
                uid = None if self.first_uid is None else self.first_uid + index
                root = self._make_root(number, index, uid)
                config = replace(
                    self.config,
                    root=root or self.config.root,
                    index=index,
                    uid=uid,
                    cgroup=tuple(cgroup),
                    process_base=self._process_base(uid),
                )
                pid = namespaces.fork_namespaced(uid) if self.namespaced else os.fork()
            except OSError as error:
                self.reply({"op": "open_failed", "slot": number, "error": str(error)})
                return
            if pid == 0:
                self.control.close()
                os.close(self.wake)
                slot_main(sock, config)
            self.slots[pid] = _SlotEntry(number, index, pid, root, uid)

    def _make_root(self, number: int, index: int, uid: int | None) -> str | None:
        """The folder of a new slot; None where each slot mounts its own."""
        parent = self.roots[index] if self.roots else self.base
        if parent is None:
            return None
        root = os.path.join(parent, f"{number}-{os.urandom(6).hex()}")
        for path in reversed(_folders(root)):
            os.mkdir(path, 0o700)
        if uid is not None:
            # what is in the outer one is out of reach meanwhile
            for path in _folders(root):
                os.chown(path, uid, uid, follow_symlinks=False)
        return root

    def _process_base(self, uid: int | None) -> int | None:
        """What RLIMIT_NPROC counts beside the slot's own processes; None where that is nothing, or
        the limit is not set at all.
        """
        if self.config.abi is None or uid is not None or self.namespaced:
            return None
        return _threads_of(os.getuid())

    def reap(self) -> None:
        """Collect what has ended; a slot's strays and folder go with it."""

        def reaped(pid: int, status: int, _: object) -> None:
            if (entry := self.slots.pop(pid, None)) is not None:
                if status and entry.uid is not None and not self.namespaced:
                    # the slot was ended before it could end what it ran
                    uids.end_all(entry.uid)
                self.unswept.append(entry)
                self.sweep()
            elif (entry := self.cleaners.pop(pid, None)) is not None:
                self.reply({"op": "closed", "slot": entry.number})

        proc.reap_all(reaped)

    def sweep(self) -> None:
        """End what dead slots left (it came to this process, and is neither slot nor cleaner);
        remove their folders.

        A folder is removed once nothing can meddle with it; until then the next round goes on.
        """
        if self.unswept and proc.kill_below(
            {*self.slots, *self.cleaners}, None, self._collect_strays, _SLOT_END_S
        ):
            ended = self.unswept
            self.unswept = []
            for entry in ended:
                self.remove(entry)

    def _collect_strays(self) -> None:
        for pid in proc.children(os.getpid()):
            if pid not in self.slots and pid not in self.cleaners:
                # It may have been reaped since it was listed.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def remove(self, entry: _SlotEntry) -> None:
        """Remove a slot's folder: an empty one here, a full one in a process of its own, since it
        may take long.
        """
        if entry.root is None or _remove_empty(entry.root):
            self.reply({"op": "closed", "slot": entry.number})
        elif (pid := os.fork()) == 0:
            _remove_and_exit(entry.root)
        else:
            self.cleaners[pid] = entry

    def end_overdue(self) -> None:
        now = time.monotonic()
        for entry in self.slots.values():
            if entry.killed_at is not None and now - entry.killed_at > _SLOT_END_S:
                proc.kill(entry.pid)

    def close(self) -> None:
        """End every slot and remove every folder."""
        self.control.close()
        signal.set_wakeup_fd(-1)

        def reaped(pid: int, *_: object) -> None:
            self.slots.pop(pid, None)

        # a slot sees the same end of file and ends its own tree in one step
        for _ in proc.rounds(_SLOT_END_S, 0.005):
            if not proc.reap_all(reaped):
                break
        for pid, entry in self.slots.items():
            proc.kill(pid)
            if entry.uid is not None and not self.namespaced:
                uids.end_all(entry.uid)
        self.slots.clear()
        self.cleaners.clear()
        proc.kill_below((), None, self._collect_strays, _SLOT_END_S)
        if self.base is not None:
            files.remove(self.base)


def _image_env() -> dict[str, str]:
    """What an image says of its own programs; not what the engine adds, nor the image's
    interpreter.
    """
    names = os.environ.keys() - {"HOSTNAME", "HOME", "TERM", "container"}
    return {
        name: os.environ[name]
        for name in names
        if not name.startswith(("PYTHON", "GPG_KEY"))
    }


def _threads_of(uid: int) -> int:
    """Tasks that this user runs now: what RLIMIT_NPROC counts."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return total


def _folders(root: str) -> tuple[str, ...]:
    """A slot's folders, the outer one last."""
    return os.path.join(root, "tmp"), os.path.join(root, "work"), root


def _remove_empty(root: str) -> bool:
    """Remove the folders of a slot that left them empty; whether it did."""
    try:
        for path in _folders(root):
            os.rmdir(path)
    except OSError:
        return False
    return True


def _remove_and_exit(root: str) -> NoReturn:
    try:
        files.remove(root)
    except OSError as error:
        os.write(2, f"{root} could not be removed: {error}\n".encode())
    finally:
        os._exit(0)


def _first_frame(control: socket.socket) -> frames.Header | None:
    decoder = frames.FrameDecoder()
    while data := control.recv(1 << 16):
        for header, _ in decoder.feed(data):
            return header
    return None


def main() -> None:
    """Serve the owner behind standard input until it is gone."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # the owner decides when to end, by closing
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        # No run inherits the owner's socket as its standard input.
        os.dup2(nothing.fileno(), 0)
    settings: dict[str, Any] | None = _first_frame(control)
    if settings is None:
        return
    try:
        supervisor = Supervisor(control, settings)
    except Refused as refusal:
        control.sendall(
            frames.encode(
                {
                    "op": "refused",
                    "why": str(refusal),
                    "setting": isinstance(refusal, SettingRefused),
                }
            )
        )
        return
    try:
        supervisor.serve()
    finally:
        supervisor.close()
