"""An interpreter that keeps its variables over the runs of one sandbox.

The slot forks it like any child, hands it each run through a socket pair (the code in a file, and fresh
pipes), and freezes it in between, so that no thread of one run is awake before the next. Whatever the code
writes to that socket can only end its own run early: the slot takes no more from it than an exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

from . import frames, tree

_EXIT = struct.Struct("!i")
_TICKS = os.sysconf("SC_CLK_TCK")
RunCode = Callable[[bytes, dict[str, str]], int]


class Session:
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
        self._used_s = 0.0

    def forked(self, pid: int) -> None:
        """The interpreter runs as ``pid``."""
        self.pid = pid
        self.theirs.close()

    def listens(self) -> bool:
        """Whether it can be given a run: it may have ended, or closed its socket, since the last one."""
        try:
            return not self.pid or self.control.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    def begin(self, code: bytes, env: dict[str, str], stdio: Sequence[int]) -> None:
        """Hand it a run and let it go on.

        Args:
            code: the source.
            env: variables that it sets and keeps.
            stdio: descriptors of its standard input, output and error.

        Raises:
            OSError: it does not take the run.
        """
        self.outcome()  # what it sent unasked
        self._used_s = self._cpu_s()
        with self._open_job() as job:
            job.write(frames.encode({"env": env}, [code]))
            job.seek(0)
            socket.send_fds(self.control, [b"."], [*stdio, job.fileno()])
        os.kill(self.pid, signal.SIGCONT)

    def _open_job(self) -> IO[bytes]:
        """A file without a name, in memory where that can be: the code may have filled its disk."""
        if sys.platform == "linux":
            return os.fdopen(os.memfd_create("code"), "w+b")
        return tempfile.TemporaryFile(dir=self._folder)

    def outcome(self) -> int | None:
        """The exit code of its run; None while it runs, and where it ends without a word."""
        try:
            said = self.control.recv(1 << 12)
        except (BlockingIOError, ConnectionResetError):
            return None
        return _EXIT.unpack_from(said)[0] & 0xFF if len(said) >= _EXIT.size else None

    def freeze(self) -> None:
        """Stop it until its next run."""
        os.kill(self.pid, signal.SIGSTOP)

    def used_s(self, total_s: float | None = None) -> float:
        """Processor seconds since the run began; ``total_s`` is its whole life's, where it has ended."""
        return max(0.0, (self._cpu_s() if total_s is None else total_s) - self._used_s)

    def close(self) -> None:
        """Forget it; its process is ended by others."""
        self.control.close()
        self.theirs.close()

    def _cpu_s(self) -> float:
        """Of itself exactly, and in ticks of its children that it has waited for; 0 where there is no /proc."""
        if sys.platform != "linux" or not self.pid:
            return 0.0
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return time.clock_gettime((~self.pid << 3) | 2) + (int(fields[13]) + int(fields[14])) / _TICKS


def serve(control: socket.socket, run: RunCode) -> NoReturn:
    """The interpreter's side: one run after another, until the slot is gone. Never returns."""
    own = os.getpid()
    while True:
        word, fds, _, _ = socket.recv_fds(control, 1, 4)
        if not word or len(fds) < 4:
            os._exit(0)
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
            os.close(fd)
        with open(fds[3], "rb") as job:
            ((header, (code,)),) = frames.Decoder().feed(job.read())
        tree.reap_all()  # children of earlier runs, which the slot has ended
        exit_code = run(code, header["env"])
        if os.getpid() != own:
            os._exit(exit_code)  # a fork that the code let run on to its end
        control.sendall(_EXIT.pack(exit_code))
