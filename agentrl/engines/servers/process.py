"""Server process: a server behind its supervisor, as its owner sees it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.engines.servers import supervise
from agentrl.errors import MachineError
from agentrl.guards.secret_mask import beginning
from agentrl.sandbox.owner_id import Owner

FOLDER_PREFIX = "agentrl-server-"
"""Of a server's temporary folder; its owner follows."""

_START_S = 30.0
_END_S = 15.0
_LOG_TAIL_LINES = 25


class ServerProcess:
    """A running server; it ends with everything that it started when ``end`` is called or this
    process dies.

    Between the two stands a supervisor, which is no child of this process. Where the supervisor
    itself is killed, the kernel ends the server, and this process what is left of its session at
    the next look at ``exit_code``; where this process died as well, ``agentrl doctor --reap`` does.

    Args:
        command: its command line.
        environment: its variables.
        log: its output is appended here.

    Raises:
        MachineError: it cannot be started at all.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._start = log.stat().st_size if log.exists() else 0
        owner = Owner.current()
        folder = tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{owner}-")
        self._marker = f"{owner}/{time.time():.6f}/{folder}"
        self._exit_code: int | None = None
        self._said = b""
        self._status, told = os.pipe()
        # The engine's event loop asks for the exit code, and may not wait for it.
        os.set_blocking(self._status, False)
        # where torch keeps compiled kernels for later starts: beside the folder that ends with the
        # server
        kernels = f"torchinductor_{os.environ.get('USER') or os.getuid()}"
        guarded = [
            sys.executable,
            "-I",
            str(Path(supervise.__file__)),
            str(os.getpid()),
            str(told),
        ]
        try:
            with log.open("ab") as output:
                starter = subprocess.Popen(
                    [*guarded, *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={
                        "TORCHINDUCTOR_CACHE_DIR": str(
                            Path(tempfile.gettempdir(), kernels)
                        ),
                        **environment,
                        supervise.MARKER: self._marker,
                        "TMPDIR": folder,
                    },
                    pass_fds=(told,),
                )
            self._pipe = starter.stdin
            # the supervisor is not this process, but a grandchild of it
            starter.wait(_START_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            os.close(self._status)
            supervise.remove_leftovers(folder)
            raise MachineError(
                f"the server cannot be started ({error}): {' '.join(command)}"
            ) from error
        finally:
            # Open here too, the pipe would not end with the supervisor, whose death it tells.
            os.close(told)
        self._wait(_START_S, lambda: b"\n" in self._said)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -9 where its supervisor was killed, and the server with it."""
        if self._exit_code is None and self._listen():
            words = self._said.split()
            known = words[-1:] if b"exit" in words else []
            self._exit_code = int(known[0]) if known else -signal.SIGKILL
            if not known:
                self._end_orphans()
        return self._exit_code

    def output(self) -> str:
        """What it has said since this start."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._start)
                return log.read().decode("utf-8", "replace")
        except OSError as error:
            return f"(its log {self.log} cannot be read: {error})"

    def log_tail(self) -> str:
        """The last lines of this start."""
        return "\n".join(
            beginning(line, 300) for line in self.output().splitlines()[-_LOG_TAIL_LINES:]
        )

    def end(self) -> None:
        """Ends it with all that it started; a second call does nothing."""
        if self._pipe is not None and not self._pipe.closed:
            self._pipe.close()
        if self._exit_code is None and not self._wait(
            _END_S, lambda: self.exit_code is not None
        ):
            self._exit_code = -signal.SIGKILL
            self._end_orphans()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1

    def _listen(self) -> bool:
        """Takes what the supervisor said; whether it ended."""
        while True:
            try:
                data = os.read(self._status, 4096)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._said += data

    def _wait(self, seconds: float, ready: Callable[[], bool]) -> bool:
        """Listens until something is so, or the time is over."""
        end = time.monotonic() + seconds
        while not ready():
            left = end - time.monotonic()
            if left <= 0 or (
                select.select([self._status], [], [], left)[0]
                and self._listen()
                and not ready()
            ):
                return ready()
        return True

    def _end_orphans(self) -> None:
        """The supervisor is gone: what is left of the server is ended from here."""
        words = self._said.split()
        session = int(words[2]) if words[:1] == [b"pids"] and len(words) > 2 else None
        supervise.end_server(self._marker, session)
