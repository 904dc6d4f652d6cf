"""Child process: runs a function on bytes in a process that has limits of memory, CPU and time.

- What the child is given is the policy's or a stranger's, and may take any time or memory.
- It starts with an empty environment; its limits hold before it sees the first byte.
- It runs this file as a script, so the standard library alone is imported here.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from agentrl.guards.secret_mask import ending

_MAX_BYTES = 2**28
_MAX_SAID_BYTES = 2**16
_TOLD_CHARS = 400


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a child may use.

    Args:
        time_s: seconds for one request, after which it is ended whatever it does.
        cpu_s: seconds of processor time for one request.
        memory_bytes: of its address space.
        opens_files: whether it may open files while it answers.
    """

    time_s: float
    cpu_s: float | None = None
    memory_bytes: int | None = None
    opens_files: bool = True


class ChildEndedError(Exception):
    """A child came to an end without an answer.

    Attributes:
        is_late: whether it was ended after ``ChildLimits.time_s``.
        status: its exit code, negative for a signal.
        said: the end of what it wrote to its standard error.
    """

    def __init__(self, *, is_late: bool, status: int, said: str) -> None:
        super().__init__(f"it ended with status {status}: {said or 'it said nothing'}")
        self.is_late = is_late
        self.status = status
        self.said = said


def ask_child(
    script: Path, data: bytes, limits: ChildLimits, *, keep: bool = False
) -> bytes:
    """What the function that ``script`` makes answers to ``data``; blocks until then.

    Args:
        script: a file of Python whose ``answerer()`` does what takes no limits, such as imports,
            and gives the function. The child finds installed packages and nothing else.
        data: the request.
        limits: of the child.
        keep: whether the child answers further requests with these limits, one after another. It
            ends with this process. Without it each request has a fresh one.

    Raises:
        ChildEndedError: the child passed a limit, or the function raised.
        OSError: no child can be started.
    """
    kept = _idle.setdefault((script, limits, keep), [])
    child = None
    # Asked first and taken then, another thread could have taken the last one between the two.
    with contextlib.suppress(IndexError):
        child = kept.pop()
    if child is None or child.process.poll() is not None:
        child = _Child(script, limits, keep=keep)
    try:
        answer = child.ask(data)
    except BaseException:
        # An answer that nobody has read would be the next request's: such a child is never kept.
        child.end()
        raise
    if keep:
        kept.append(child)
    else:
        child.end()
    return answer


class _Child:
    """The parent's side; used by one thread at a time."""

    def __init__(self, script: Path, limits: ChildLimits, *, keep: bool) -> None:
        self._time_s = limits.time_s
        # a file and no pipe, which would block a child that says much
        # ``end`` closes it.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        order = json.dumps({"script": str(script), "keep": keep, **asdict(limits)})
        self._pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-B", __file__, order],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={},
            )

    def ask(self, data: bytes) -> bytes:
        """The answer to a request."""
        late = threading.Event()

        def end_late() -> None:
            late.set()
            self.process.kill()

        clock = threading.Timer(self._time_s, end_late)
        clock.daemon = True
        clock.start()
        try:
            self._pipe.send_bytes(data)
            return self._pipe.recv_bytes(_MAX_BYTES)
        except (OSError, EOFError) as error:
            # the clock still runs, so that this wait has an end too
            status = self.process.wait()
            self._said.seek(0)
            raise ChildEndedError(
                is_late=late.is_set(),
                status=status,
                said=ending(
                    self._said.read().decode(errors="replace").strip(), _TOLD_CHARS
                ),
            ) from error
        finally:
            clock.cancel()

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._pipe.close()
        self._said.close()


_idle: dict[tuple[Path, ChildLimits, bool], list[_Child]] = {}
"""Kept children that wait for a request, of all threads; list.append and pop are atomic."""


def _serve(script: str, *, keep: bool, limits: ChildLimits) -> None:
    """The child's side: answers requests until the pipe ends."""
    answer = runpy.run_path(script)["answerer"]()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_SAID_BYTES, _MAX_SAID_BYTES))
    if limits.memory_bytes is not None:
        # macOS knows no limit of the address space
        memory = resource.RLIMIT_AS if sys.platform == "linux" else resource.RLIMIT_DATA
        resource.setrlimit(memory, (limits.memory_bytes, limits.memory_bytes))
    if not limits.opens_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    pipe = Connection(0)
    while True:
        try:
            data = pipe.recv_bytes(_MAX_BYTES)
        except EOFError:
            return
        if limits.cpu_s is not None:
            end = math.ceil(time.process_time() + limits.cpu_s)
            # a child of one request can never raise it again
            resource.setrlimit(resource.RLIMIT_CPU, (end, most if keep else end))
        pipe.send_bytes(answer(data))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    _serve(asked.pop("script"), keep=asked.pop("keep"), limits=ChildLimits(**asked))
