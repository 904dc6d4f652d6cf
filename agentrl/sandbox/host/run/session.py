"""Interpreter session: keeps an interpreter's variables over the runs of one sandbox.

The slot forks it like any child, hands it each run through a socket pair (the code in a file, and
fresh pipes), and freezes it in between, so that no thread of one run is awake before the next.

The code can do to that socket, and to its own process, whatever it likes: shut the socket down,
flood it, forge an exit code, end itself at any moment. So the slot takes no more from it than the
token of the run and an exit code, and ends an interpreter that says anything else, takes no run, or
was awake between two runs. All of that is the run's result or the loss of its variables, and never
a failure of the slot.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

from .. import frames, proc

_TOKEN_BYTES = 8
_EXIT = struct.Struct(f"!{_TOKEN_BYTES}si")
# F_SEAL_SEAL, SHRINK, GROW, WRITE
_SEALED = 0b1111
_TICKS = os.sysconf("SC_CLK_TCK")
# processor time that threads may need to notice that they were stopped
_STOPPING_S = 0.01
RunCode = Callable[[bytes, dict[str, str]], int]


# No error by name: it is the code's doing, not an error of the slot.
class SessionBroken(Exception):  # noqa: N818
    """The interpreter cannot be given another run; it must be ended."""


class InterpreterSession:
    """The slot's side.

    Args:
        folder: where the code of a run is put, in a file without a name.

    Attributes:
        pid: of the interpreter, once it was forked.
        theirs: the interpreter's end of the socket pair, which its fork must keep.
    """

    def __init__(self, folder: str) -> None:
        self.pid = 0
        self._folder = folder
        self.control, self.theirs = socket.socketpair()
        self.control.setblocking(False)
        self._token = b""
        self._begun_s = 0.0
        self._rested_s = 0.0

    def forked(self, pid: int) -> None:
        """The interpreter runs as ``pid``."""
        self.pid = pid
        self.theirs.close()

    def begin(self, code: bytes, env: dict[str, str], stdio: Sequence[int]) -> None:
        """Hand it a run and let it go on.

        Args:
            code: the source.
            env: variables that it sets and keeps.
            stdio: descriptors of its standard input, output and error.

        Raises:
            SessionBroken: it does not take the run, for what the code of earlier runs did.
        """
        self._begun_s = self._cpu_s()
        if self._token and not self._has_rested():
            raise SessionBroken("it was awake, or spoke, between two runs")
        self._token = os.urandom(_TOKEN_BYTES)
        with self._open_job() as job:
            job.write(frames.encode({"env": env}, [self._token, code]))
            job.seek(0)
            # the code may keep it, and no limit would count what it wrote there
            if sys.platform == "linux":
                fcntl.fcntl(job, fcntl.F_ADD_SEALS, _SEALED)
            try:
                socket.send_fds(self.control, [b"."], [*stdio, job.fileno()])
            # whatever the reason: the code holds the other end
            except OSError as error:
                raise SessionBroken(f"it takes no run: {error.strerror}") from error
        os.kill(self.pid, signal.SIGCONT)

    def _has_rested(self) -> bool:
        """Whether nothing came from it since its last run ended, and it did not run."""
        try:
            self.control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return self.is_frozen() and self._begun_s - self._rested_s < _STOPPING_S
        except ConnectionResetError:
            return False
        return False

    def _open_job(self) -> IO[bytes]:
        """A file without a name, in memory where that can be: the code may have filled its disk."""
        if sys.platform == "linux":
            return os.fdopen(
                os.memfd_create("code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b"
            )
        return tempfile.TemporaryFile(dir=self._folder)

    def outcome(self) -> int | None:
        """The exit code of its run, once the socket can be read; None where it was closed.

        Raises:
            SessionBroken: what came is not this run's token and an exit code.
        """
        try:
            said = self.control.recv(1 << 12)
        except ConnectionResetError:
            said = b""
        # readable, and yet nothing to read: urgent data
        except BlockingIOError:
            said = b"!"
        if not said:
            return None
        if len(said) == _EXIT.size and said.startswith(self._token):
            return int(_EXIT.unpack(said)[1]) & 0xFF
        raise SessionBroken("the code wrote to the socket of its interpreter")

    def freeze(self) -> None:
        """Stop it until its next run; one that has ended stays as it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def is_frozen(self) -> bool:
        """Whether it has stopped; True as well where there is no /proc to tell."""
        return (self._stat() or [b"T"])[0] in (b"T", b"t")

    def rests(self) -> None:
        """Its run is over and it is frozen."""
        self._rested_s = self._cpu_s()

    def used_s(self, total_s: float | None = None) -> float:
        """Processor seconds since the run began; ``total_s`` is its whole life's, where it has
        ended.
        """
        return max(0.0, (self._cpu_s() if total_s is None else total_s) - self._begun_s)

    def close(self) -> None:
        """Forget it; its process is ended by others."""
        self.control.close()
        self.theirs.close()

    def _stat(self) -> list[bytes]:
        """Fields of proc_pid_stat(5) from the third on; empty where there is no /proc or no such
        process.
        """
        if sys.platform != "linux" or not self.pid:
            return []
        return proc.stat(self.pid, strict=True)

    def _cpu_s(self) -> float:
        """Of itself exactly, and in ticks of its children that it has waited for; 0 where there is
        no /proc.
        """
        fields = self._stat()
        if not fields:
            return 0.0
        of_children = int(fields[13]) + int(fields[14])
        try:
            return time.clock_gettime((~self.pid << 3) | 2) + of_children / _TICKS
        # it has ended, and has yet to be reaped
        except OSError:
            return (int(fields[11]) + int(fields[12]) + of_children) / _TICKS


def serve(control: socket.socket, run: RunCode) -> NoReturn:
    """The interpreter's side: one run after another, until the slot is gone. Never returns."""
    own = os.getpid()
    while True:
        try:
            word, fds, _, _ = socket.recv_fds(control, 1, 4)
        # the code gave the socket a deadline
        except BlockingIOError:
            poller = select.poll()
            poller.register(control, select.POLLIN)
            poller.poll()
            continue
        if not word:
            os._exit(0)
        if len(fds) < 4:
            # the code left no descriptor free
            os._exit(1)
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
            os.close(fd)
        with open(fds[3], "rb") as job:
            ((header, (token, code)),) = frames.FrameDecoder().feed(job.read())
        # children of earlier runs, which the slot has ended
        proc.reap_all()
        exit_code = run(code, header["env"])
        if os.getpid() != own:
            # a fork that the code let run on to its end
            os._exit(exit_code)
        try:
            control.sendall(_EXIT.pack(token, exit_code))
        # the code closed it: the end of the process says the same
        except OSError:
            os._exit(exit_code)
