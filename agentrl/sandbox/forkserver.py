"""The owner's side of the sandbox host: start it, open slots in it, end it."""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, MachineError, SandboxError

from .channel import Channel, IOThread, Reply, fail, resolve
from .host import folder, frames
from .permits import Permits

_START_S = 60.0
_END_S = 5.0
_BOOT = (
    "import sys; sys.path.insert(0, {folder!r}); from host.supervisor import main; sys.path.remove({folder!r}); main()"
)


@dataclass(frozen=True)
class HostSettings:
    """What makes two sandboxes share one host.

    Attributes:
        confine: Landlock, seccomp and a uid of their own; False runs the code with the owner's rights.
        preload: modules that every run finds imported.
        folders: folders of modules beyond the standard library that the code may read and import.
        abi_cap: use no newer Landlock ABI than this, to see how an older kernel does.
        max_executing: runs at one time; None gives two to each core that this process may use.
    """

    confine: bool
    preload: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    abi_cap: int | None = None
    max_executing: int | None = None


class Slot:
    """A slot process of the host, as its owner sees it: requests in, futures out."""

    def __init__(self, server: ForkServer, number: int, sock: socket.socket) -> None:
        self.number = number
        self.closed: Future[None] = Future()
        self.server = server
        self.opened: Future[Reply] = Future()  # resolves when the slot is ready
        self._pending: dict[int, Future[Reply]] = {0: self.opened}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._ended = False
        self.channel = Channel(server.io, sock, self._on_frame, self._on_end)

    def request(self, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> tuple[int, Future[Reply]]:
        """Send a request; its number and the future of its reply."""
        number, future = next(self._ids), Future[Reply]()
        with self._lock:
            ended = self._ended
            if not ended:
                self._pending[number] = future
        if ended:
            future.set_exception(SandboxError("the sandbox has ended; reset() it or open another"))
        else:
            self.channel.send({**header, "id": number}, blobs)
        return number, future

    def cancel(self, number: int) -> None:
        """End the run with this number; its reply is dropped."""
        self.channel.send({"op": "cancel", "target": number})

    def close(self) -> None:
        """Hang up: the slot ends its processes, the supervisor removes its folder."""
        self.channel.close()

    def kill(self) -> None:
        """End the slot by force, also where it does not listen."""
        self.server.kill_slot(self.number)
        self.channel.close()

    def fail_open(self, why: str) -> None:
        """The supervisor could not fork this slot."""
        with self._lock:
            opened = self._pending.pop(0, None)
        if opened is not None:
            fail(opened, SandboxError(f"a sandbox could not be opened: {why}"))
        self.close()
        resolve(self.closed, None)

    def _on_frame(self, header: frames.Header, blobs: list[bytes]) -> None:
        with self._lock:
            future = self._pending.pop(header["id"], None)
        if future is not None:
            resolve(future, (header, blobs))

    def _on_end(self) -> None:
        with self._lock:
            self._ended = True
            pending, self._pending = self._pending, {}
        for future in pending.values():
            fail(future, SandboxError("the sandbox's process ended before it answered; another sandbox may do"))


class ForkServer:
    """One host process; started on the first use and shared by every sandbox with the same settings.

    Args:
        settings: what the host is told at its start.

    Attributes:
        executing: a permit for each run at one time, over all sandboxes of the host.

    Raises:
        MachineError: this machine cannot host such sandboxes.
        ConfigError: a module to preload cannot be imported.
        SandboxError: the host did not start.
    """

    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.facts: dict[str, Any] = {}
        self.slots: dict[int, Slot] = {}
        self.ended = False
        self.executing = Permits(settings.max_executing or 2 * _usable_cores())
        self._numbers = itertools.count()
        self._ready: Future[dict[str, Any]] = Future()
        self._lock = threading.Lock()
        self.io = IOThread("agentrl-sandbox-io")
        self.io.call(self._spawn)
        try:
            self.facts = self._ready.result(_START_S)
        except TimeoutError:
            self.close()
            raise SandboxError(f"the sandbox host did not start within {_START_S:g} s") from None
        except BaseException:
            self.close()
            raise

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the server
        here = str(Path(__file__).parent)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOT.format(folder=here)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._log,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            fail(self._ready, SandboxError(f"the sandbox host could not be started: {error}"))
            return
        self.control = Channel(self.io, ours, self._on_frame, self._on_end)
        self.control.send(
            {
                "confine": self.settings.confine,
                "preload": self.settings.preload,
                "folders": self.settings.folders,
                "abi_cap": self.settings.abi_cap,
            }
        )

    def open_slot(self) -> Slot:
        """Fork a slot; its :attr:`Slot.opened` says when it is ready."""
        ours, theirs = socket.socketpair()
        with theirs:
            slot = Slot(self, next(self._numbers), ours)
            with self._lock:
                self.slots[slot.number] = slot
                ended = self.ended
            if ended:
                slot.close()
            else:
                self.control.send({"op": "open", "slot": slot.number}, fd=theirs.fileno())
        return slot

    def kill_slot(self, number: int) -> None:
        """SIGKILL a slot; the supervisor then sweeps what it ran."""
        self.control.send({"op": "kill", "slot": number})

    def close(self) -> None:
        """End the host with everything in it."""
        if hasattr(self, "control"):
            self.control.close()
        if hasattr(self, "_process"):
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._remove_base()
        self.io.stop()

    def _remove_base(self) -> None:
        """What a host that was killed could not remove itself; its slots are ending meanwhile."""
        base, deadline = self.facts.get("base"), time.monotonic() + _END_S
        while base is not None and os.path.exists(base):
            try:
                folder.remove(base)
            except OSError:
                if time.monotonic() > deadline:
                    raise SandboxError(f"the folder {base} of a sandbox host that died could not be removed") from None
                time.sleep(0.01)

    def abandon(self) -> None:
        """In a forked child: drop the copies of the owner's sockets, so that the owner's end is seen."""
        for slot in self.slots.values():
            slot.channel.abandon()
        self.control.abandon()

    def _on_frame(self, header: frames.Header, _: list[bytes]) -> None:
        match header["op"]:
            case "ready":
                resolve(self._ready, header)
            case "refused":
                fail(self._ready, (ConfigError if header["setting"] else MachineError)(header["why"]))
            case "closed":
                with self._lock:
                    slot = self.slots.pop(header["slot"])
                slot.close()
                resolve(slot.closed, None)
            case "open_failed":
                with self._lock:
                    slot = self.slots.pop(header["slot"])
                slot.fail_open(header["error"])

    def _on_end(self) -> None:
        with self._lock:
            self.ended = True
            slots, self.slots = self.slots, {}
        self._log.seek(0)
        said = self._log.read()[-2000:].decode(errors="replace").strip()
        self._log.close()
        error = SandboxError(f"the sandbox host ended{': ' + said if said else ''}")
        if not self._ready.done():
            fail(self._ready, error)
        for slot in slots.values():
            slot.close()
            fail(slot.closed, error)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_servers: dict[HostSettings, ForkServer] = {}
_servers_lock = threading.Lock()


def shared_server(settings: HostSettings) -> ForkServer:
    """This process's host for these settings, started if need be."""
    with _servers_lock:
        server = _servers.get(settings)
        if server is not None and server.ended:
            server.close()
        if server is None or server.ended:
            server = _servers[settings] = ForkServer(settings)
        return server


def close_servers() -> None:
    """End every host of this process; called at its exit."""
    with _servers_lock:
        servers = list(_servers.values())
        _servers.clear()
    for server in servers:
        server.close()


def _after_fork_in_child() -> None:
    global _servers_lock
    _servers_lock = threading.Lock()
    for server in _servers.values():
        server.abandon()
    _servers.clear()


atexit.register(close_servers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
