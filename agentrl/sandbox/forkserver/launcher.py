"""Launchers: start a sandbox host in some place, here as a plain process beside its owner."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from agentrl.errors import SandboxError
from agentrl.sandbox.host import files, frames, proc
from agentrl.sandbox.host.proc import rounds
from agentrl.sandbox.owner_id import Owner
from agentrl.types.loop_thread import LoopThread

from .cgroups import CgroupPool
from .channel import Channel, OnEnd, OnFrame

_REMOVE_S = 5.0
_LISTENER_S = 10.0
_BOOT = (
    "import sys; sys.path.insert(0, {folder!r}); from host.{module} import main; "
    "sys.path.remove({folder!r}); main()"
)
# of a host's folder, before its owner
FOLDER_PREFIX = "agentrl-sandbox-"
HOST_FOLDER = Path(__file__).parents[1] / "host"


class Link(Protocol):
    """Frames to and from one process of the host: the supervisor, or a slot."""

    def send(self, header: frames.Header, blobs: Sequence[bytes] = ()) -> None:
        """Send a frame without blocking; from any thread. Dropped once the link has ended."""

    def close(self) -> None:
        """Hang up, which ends the process behind it; from any thread."""

    def abandon(self) -> None:
        """Drop this process's copy and leave the peer alone: what a forked child does."""


class Host(Protocol):
    """A supervisor that was started."""

    @property
    def control(self) -> Link:
        """The link to the supervisor."""

    def open_slot(self, number: int, on_frame: OnFrame, on_end: OnEnd) -> Link:
        """Ask the supervisor for a slot; the link to it. The callbacks are called on the I/O
        thread, the last once.
        """

    def said(self) -> str:
        """What the host wrote to its standard error; for the message about its end."""

    def end(self, patience_s: float) -> None:
        """Wait for the end of a host whose control link was closed; force it after ``patience_s``
        seconds.
        """

    def clear(self, facts: Mapping[str, Any]) -> None:
        """Remove what an ended host left; ``facts`` is what it said when it was ready, empty if it
        never was.

        Raises:
            SandboxError: something could not be removed.
        """


class Launcher(Protocol):
    """Starts a host somewhere. Hashable: sandboxes with equal launchers and settings share a
    host.
    """

    @property
    def host_settings(self) -> Mapping[str, Any]:
        """What the supervisor's first frame says beyond the owner's settings."""

    def start(self, io: LoopThread, on_frame: OnFrame, on_end: OnEnd) -> Host:
        """Start the supervisor; called on the I/O thread, which lives as long as the host.

        Args:
            io: serves the links.
            on_frame: called on the I/O thread with each frame of the supervisor's.
            on_end: called once on the I/O thread when the supervisor is gone or the control link
                was closed.

        Raises:
            SandboxError: it could not be started.
            MachineError: this machine cannot start it; with the remedy.
        """


class ProcessHost:
    """A supervisor in a process of this machine, behind a unix socket that also carries
    descriptors.

    Args:
        argv: the program to start; the supervisor finds the socket as its standard input.
        io, on_frame, on_end: as in :meth:`Launcher.start`.
        pass_fds: descriptors that the program inherits.

    Raises:
        SandboxError: the program could not be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        io: LoopThread,
        on_frame: OnFrame,
        on_end: OnEnd,
        *,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._io = io
        # ``clear`` closes it.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._log,
                    env={},
                    cwd="/",
                    pass_fds=pass_fds,
                    # Ctrl-C in a terminal reaches its whole group: the owner decides when a host
                    # ends.
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            self._log.close()
            raise SandboxError(f"the sandbox host could not be started: {error}") from error
        cgroups = self._cgroups = CgroupPool()

        def hear(header: frames.Header, blobs: list[bytes]) -> None:
            # its cgroup is free for another slot
            if header["op"] in ("closed", "open_failed"):
                cgroups.take_back(header["slot"])
            on_frame(header, blobs)

        self.pid = self._process.pid
        self.control = Channel(io, ours, hear, on_end)

    def open_slot(self, number: int, on_frame: OnFrame, on_end: OnEnd) -> Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            channel = Channel(self._io, ours, on_frame, on_end)
            cgroup = self._cgroups.lend(number)
            self.control.send(
                {"op": "open", "slot": number, "cgroup": len(cgroup)},
                fds=(theirs.fileno(), *cgroup),
            )
        return channel

    def listener(self) -> socket.socket:
        """The socket at which the sandboxes ask for the network; the host listens, and its owner
        serves it.

        Raises:
            SandboxError: the host did not give it.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self.control.send({"op": "listener"}, fds=(theirs.fileno(),))
            ours.settimeout(_LISTENER_S)
            try:
                _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            except OSError as error:
                raise SandboxError(
                    f"the sandbox host gave no socket for the proxy: {error}"
                ) from error
        return socket.socket(fileno=fds[0])

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:].decode(errors="replace").strip()

    def end(self, patience_s: float) -> None:
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def clear(self, facts: Mapping[str, Any]) -> None:
        """A host that was killed leaves its folder, and processes of its sandboxes; slots may be
        ending meanwhile.
        """
        self._log.close()
        self._cgroups.close()
        base = facts.get("base") or ""
        if os.path.exists(base) and sys.platform == "linux":
            proc.end_orphans(_REMOVE_S)
        for _ in rounds(_REMOVE_S, 0.01):
            if not os.path.exists(base):
                return
            # A process that is ending may still write there: the next round removes that too.
            with contextlib.suppress(OSError):
                files.remove(base)
                return
        raise SandboxError(
            f"the folder {base} of a sandbox host that died could not be removed"
        )


@dataclass(frozen=True)
class LocalLauncher:
    """The host is a child process beside its owner, with an empty environment."""

    host_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def start(self, io: LoopThread, on_frame: OnFrame, on_end: OnEnd) -> ProcessHost:
        return ProcessHost(host_argv(), io, on_frame, on_end)


def host_argv(
    module: str = "supervisor", *, folder: str = str(HOST_FOLDER.parent)
) -> list[str]:
    """The command line of a program of the host's, in the interpreter that runs this; it names its
    owner, this process.

    Args:
        module: has the ``main`` to call.
        folder: where the package ``host`` is found.
    """
    boot = _BOOT.format(folder=folder, module=module)
    return [sys.executable, "-I", "-S", "-c", boot, proc.HOST_TITLE, str(Owner.current())]
