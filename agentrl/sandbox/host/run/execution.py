"""Execution: one run in a slot; forks, feeds, reads, watches, ends and reports."""

from __future__ import annotations

import os
import resource
import select
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from .. import files, frames, proc
from . import child
from .session import InterpreterSession, SessionBroken
from .slot import Slot
from .watch import SpaceShort, Watch

_CHUNK = 1 << 16
_WATCH_S = 0.1
_REAP_S = 20.0
# in which what a run left beside its interpreter must end; else the interpreter goes too
_SETTLE_S = 2.0
# of one run
_MAX_FETCHED_BYTES = 2**30
_LOST = "the interpreter ended, and its variables with it"
_FRESH = "the variables of earlier runs are lost: their interpreter had ended"
_HARMED = (
    "the kernel ended a process of the run for want of memory, and the run was within its limit: a "
    "cgroup above it, its container or the machine is full"
)


class HostFailure(Exception):  # noqa: N818
    """The slot itself failed; the owner raises SandboxError."""


@dataclass
class _Output:
    """One output of the child, kept up to its limit."""

    fd: int
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def read(self) -> bool:
        """Take what is there; False at the end of the stream."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.truncated = self.truncated or len(data) > room
        return bool(data)

    def drain(self) -> None:
        """What lies in the pipe after every writer has ended."""
        while not self.truncated:
            before = len(self.kept)
            if not self.read() or len(self.kept) == before:
                return


@dataclass
class _Execution:
    slot: Slot
    header: frames.Header
    stdin: memoryview
    pid: int = 0
    session: InterpreterSession | None = None
    # the kernel ended processes of the memory since the last run
    harmed_at_rest: bool = False
    # untold: the session's interpreter had ended
    starts_afresh: bool = False
    # as waitpid tells it
    status: int | None = None
    # the exit code of a run whose interpreter lives on
    reported: int | None = None
    cpu_s: float = 0.0
    # by the processes that were killed, each at its most
    held_bytes: int = 0
    reason: str = ""
    detail: str = ""
    # of the machine
    failure: str = ""

    def start(self, code: bytes) -> None:
        self.limits = self.header["limits"]
        pipes = [os.pipe() for _ in range(4)]
        (in_r, self.in_w), (out_r, out_w), (err_r, err_w), (status_r, status_w) = pipes
        stdio = (in_r, out_w, err_w)
        self.status_r = status_r
        self.out, self.err = (
            _Output(fd, self.limits["output_bytes"]) for fd in (out_r, err_r)
        )
        for fd in (self.in_w, out_r, err_r):
            os.set_blocking(fd, False)
        self.started = time.monotonic()
        try:
            if self.header["persist"] == "interpreter":
                self.hand_over(code, stdio, status_w)
            else:
                self.fork(code, stdio, status_w, None)
        finally:
            for fd in (*stdio, status_w):
                os.close(fd)
        self.watch = Watch(self.slot, self.limits, self.session)

    def fork(
        self,
        code: bytes,
        stdio: child.Stdio,
        status_w: int,
        session: InterpreterSession | None,
    ) -> None:
        self.pid = self.slot.fork()
        if self.pid == 0:
            child.run(self.slot, self.header, code, session, stdio, status_w)

    def hand_over(self, code: bytes, stdio: child.Stdio, status_w: int) -> None:
        """Give the run to the interpreter that keeps its variables; to a new one where that cannot
        go on.
        """
        slot = self.slot
        if slot.session is not None:
            try:
                slot.session.begin(code, self.header["env"], stdio)
            except (
                SessionBroken
                # what earlier runs did to it costs their variables, and not this run
            ) as broken:
                if self.harmed_at_rest:
                    raise HostFailure(_HARMED) from broken
                slot.kill_all()
                slot.end_session()
                proc.reap_all()
                slot.lost_unsaid = True
        self.starts_afresh = slot.lost_unsaid
        slot.lost_unsaid = False
        if slot.session is None:
            session = InterpreterSession(slot.config.root)
            self.fork(b"", stdio, status_w, session)
            session.forked(self.pid)
            slot.session = session
            session.begin(code, self.header["env"], stdio)
        self.session = slot.session
        self.pid = slot.session.pid

    def reap(self) -> bool:
        """Collect everything that has ended, strays that came to the slot as well; whether a child
        is left.
        """
        return proc.reap_all(self.reaped)

    def reaped(self, pid: int, status: int, used: resource.struct_rusage) -> None:
        """A child has ended."""
        used_s = used.ru_utime + used.ru_stime
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            unit = 1 if sys.platform == "darwin" else 1024
            self.held_bytes += max(0, used.ru_maxrss - inherited) * unit
        if pid == self.pid:
            self.status = status
            used_s = used_s if self.session is None else self.session.used_s(used_s)
        elif self.slot.session is not None and pid == self.slot.session.pid:
            # it was frozen while this ran, and still it ended
            self.slot.forget_session()
            self.slot.lost_unsaid = True
        self.cpu_s += used_s

    def end(self, reason: str, detail: str) -> None:
        if not self.reason:
            self.reason = reason
            self.detail = detail

    def drive(self) -> None:
        """Serve the pipes until the code has ended or must end."""
        deadline = self.started + self.limits["wall_s"]
        next_watch = self.started + _WATCH_S
        # epoll would take what is counted by user, and the code is this one
        with selectors.PollSelector() as selector:
            selector.register(self.slot.sock, selectors.EVENT_READ, "owner")
            selector.register(self.slot.wake, selectors.EVENT_READ, "wake")
            for stream in (self.out, self.err):
                selector.register(stream.fd, selectors.EVENT_READ, stream)
            if self.stdin:
                selector.register(self.in_w, selectors.EVENT_WRITE, "stdin")
            else:
                self.close_stdin()
            # while it waited for its turn
            if self.header["id"] in self.slot.cancelled:
                self.end("killed", "cancelled by the caller")
            if self.session is not None:
                selector.register(self.session.control, selectors.EVENT_READ, "session")
            while not (self.has_ended or self.reason or self.truncated):
                now = time.monotonic()
                if now >= deadline:
                    self.end("timeout", f"still running after {self.limits['wall_s']:g} s")
                    break
                if now >= next_watch:
                    next_watch = now + _WATCH_S
                    self.look()
                    continue
                for key, _ in selector.select(max(0.0, min(deadline, next_watch) - now)):
                    self.serve(key.data, selector)

    @property
    def has_ended(self) -> bool:
        return self.status is not None or self.reported is not None

    def serve(self, what: Any, selector: selectors.BaseSelector) -> None:
        if what == "wake":
            os.read(self.slot.wake, 4096)
            self.reap()
        elif what == "owner":
            self.slot.receive()
            if self.slot.owner_gone or self.header["id"] in self.slot.cancelled:
                self.end("killed", "cancelled by the caller")
        elif what == "stdin":
            self.feed(selector)
        elif what == "session":
            assert self.session is not None
            try:
                self.reported = self.session.outcome()
            except SessionBroken as error:
                self.end("killed", str(error))
            # closed: only the end of the process says more
            if self.reported is None:
                selector.unregister(self.session.control)
        elif not what.read():
            selector.unregister(what.fd)

    def feed(self, selector: selectors.BaseSelector) -> None:
        try:
            self.stdin = self.stdin[os.write(self.in_w, self.stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.stdin = memoryview(b"")
        if not self.stdin:
            selector.unregister(self.in_w)
            self.close_stdin()

    def close_stdin(self) -> None:
        if self.in_w >= 0:
            os.close(self.in_w)
            self.in_w = -1

    def look(self) -> None:
        try:
            if verdict := self.watch.look():
                self.end(*verdict)
        except SpaceShort as error:
            self.failure = str(error)
            self.end("killed", self.failure)

    def finish(self) -> None:
        """Nothing of the run lives after this.

        Raises:
            HostFailure: a process could not be ended, so that the slot must not be used again; or
                the machine, and not the code, is why the run was ended.
        """
        self.wall_s = time.monotonic() - self.started
        self.close_stdin()
        gone = self.sweep()
        for name, stream in (("stdout", self.out), ("stderr", self.err)):
            stream.drain()
            if stream.truncated:
                self.end("output_limit", f"{name} passed the limit of {stream.limit} bytes")
        refused = os.read(self.status_r, _CHUNK)
        for fd in (self.out.fd, self.err.fd, self.status_r):
            os.close(fd)
        if not gone or not self.has_ended:
            raise HostFailure("processes of a run outlived SIGKILL")
        if refused:
            raise HostFailure(
                f"the code was not started: {refused.decode(errors='replace')}"
            )
        if self.failure:
            raise HostFailure(self.failure)

    def sweep(self) -> bool:
        """End what the run left, and an interpreter that must not go on; whether nothing else is
        left.
        """
        slot = self.slot
        ended_well = (
            self.reported is not None
            and self.status is None
            and not (self.reason or self.truncated)
        )
        if slot.session is not None and (self.session is None or ended_well):
            if self.settle(slot.session):
                return True
            if self.session is not None and self.status is None:
                self.end("killed", "its processes went on beside the interpreter")
        slot.kill_all()
        if not slot.scoped and not proc.kill_below((), self._group, self.reap, _REAP_S):
            return False
        return self.await_end()

    @property
    def _group(self) -> int | None:
        """What to kill where nothing else holds a run together."""
        return self.pid if self.slot.config.abi is None else None

    def settle(self, session: InterpreterSession) -> bool:
        """End all but the interpreter; whether that was done, and it rests."""
        own = session is self.session
        keep = self.slot.with_first(session.pid)
        end = time.monotonic() + _SETTLE_S
        group = None if own else self._group
        frozen = False
        while not frozen:
            session.freeze()
            # before the look below: what is awake may fork after it
            frozen = session.is_frozen()
            left_s = end - time.monotonic()
            if not proc.kill_below(keep, group, self.reap, left_s, bare=keep) or left_s < 0:
                return False
            self.reap()
            if self.slot.session is None or (own and self.status is not None):
                # it ended meanwhile
                return False
        while not own and self.status is None and time.monotonic() < end:
            self.reap()
            time.sleep(0.001)
        if own:
            self.cpu_s += session.used_s()
            session.rests()
        return True

    def await_end(self) -> bool:
        """Wait for the end of every child, where all were killed in one step; whether it came."""
        end = time.monotonic() + _REAP_S
        while self.reap():
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            if select.select([self.slot.wake], [], [], left_s)[0]:
                os.read(self.slot.wake, 4096)
        return True

    @property
    def truncated(self) -> bool:
        return self.out.truncated or self.err.truncated

    def result(self) -> dict[str, Any]:
        code = (
            self.reported if self.status is None else os.waitstatus_to_exitcode(self.status)
        )
        assert code is not None
        exit_code, killed_by = (code, None) if code >= 0 else (None, -code)
        status, detail = self.classify(exit_code, killed_by)
        lost = self.end_session(status)
        notes = [detail, _FRESH if self.starts_afresh else "", _LOST if lost else ""]
        return {
            "interpreter_ended": lost or self.starts_afresh,
            "status": status,
            "detail": "; ".join(filter(None, notes)),
            "exit_code": exit_code,
            "signal": killed_by,
            "stdout_truncated": self.out.truncated,
            "stderr_truncated": self.err.truncated,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
        }

    def end_session(self, status: str) -> bool:
        """Whether the interpreter of this run has ended, or is ended here since the run was."""
        if self.session is None or (self.status is None and status in ("ok", "error")):
            return False
        if self.status is None:
            self.slot.end_session()
        self.slot.forget_session()
        return True

    def classify(self, exit_code: int | None, killed_by: int | None) -> tuple[str, str]:
        cpu_limit = self.limits["cpu_s"]
        if self.slot.memory.is_spent:
            return (
                "oom",
                f"the kernel ended a process: all together passed {self.limits['memory_bytes']} "
                "bytes",
            )
        if self.reason:
            return self.reason, self.detail
        if exit_code == 0:
            return "ok", ""
        if exit_code is not None:
            last = self.err.kept.rstrip().rpartition(b"\n")[2]
            return (
                ("oom", "MemoryError") if last.startswith(b"MemoryError") else ("error", "")
            )
        overran = killed_by == signal.SIGXCPU or (
            killed_by == signal.SIGKILL and self.cpu_s >= (cpu_limit or 0)
        )
        if cpu_limit is not None and overran:
            return (
                "timeout",
                f"used {self.cpu_s:.2f} s of processor time; the limit is {cpu_limit:g} s",
            )
        if killed_by == signal.SIGKILL and self.held_bytes > self.limits["memory_bytes"]:
            return "oom", f"killed with {self.held_bytes} bytes in use"
        name = next(
            (named.name for named in signal.Signals if named == killed_by),
            f"signal {killed_by}",
        )
        return ("killed" if killed_by == signal.SIGKILL else "error"), f"ended by {name}"


def execute(slot: Slot, header: frames.Header, blobs: list[bytes]) -> frames.Frame:
    """Do one run request: the reply's fields, those of ``ExecResult`` as ``result``, and its blobs:
    stdout, stderr and the fetched files.

    Raises:
        PathRefused: a file to write first was refused.
        HostFailure: the run could not be started or ended; nothing is known about the code.
    """
    stdin, code, *uploads = blobs
    for path, data in zip(header["files"], uploads, strict=True):
        files.write_file(slot.work, path, data)
    execution = _Execution(slot, header, memoryview(stdin))
    execution.harmed_at_rest = slot.resting_pid != 0 and slot.memory.harmed()
    # also of an interpreter that rests beside a fresh one
    rests = header["persist"] != "interpreter" and slot.resting_pid
    slot.memory.begin(header["limits"], 2 if rests else 1)
    execution.start(code)
    execution.drive()
    execution.finish()
    result = execution.result()
    if slot.memory.harmed(result["status"], result["signal"]):
        raise HostFailure(_HARMED)
    fetched = []
    refused = {}
    contents = []
    room = _MAX_FETCHED_BYTES
    for path in header["fetch"]:
        try:
            contents.append(
                files.read_file(slot.work, path, min(room, header["limits"]["file_bytes"]))
            )
            room -= len(contents[-1])
            fetched.append(path)
        except files.PathRefused as error:
            refused[path] = str(error)
    reply = {"result": result, "fetched": fetched, "refused_files": refused}
    return reply, [bytes(execution.out.kept), bytes(execution.err.kept), *contents]
