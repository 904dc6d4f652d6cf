"""One run in a slot: fork, feed, read, watch, end, report."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from . import child, folder, frames, tree

if TYPE_CHECKING:
    from .slot import Slot

_CHUNK = 1 << 16
_WATCH_S = 0.1
_DISK_EVERY = 5  # watch ticks
_REAP_S = 10.0
_SHARED_UID_MARGIN = 256  # processes that the user may start meanwhile
_OOM_SHARE = 0.7  # of the memory limit: a SIGKILL with that much in use was the kernel's


class HostFailure(Exception):  # noqa: N818
    """The slot itself failed; the owner raises SandboxError."""


class _Stream:
    """One output of the child, kept up to its limit."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.limit = limit
        self.kept = bytearray()
        self.truncated = False

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


class _Execution:
    def __init__(self, slot: Slot, header: frames.Header, stdin: bytes) -> None:
        self.slot = slot
        self.header = header
        self.limits = header["limits"]
        self.stdin = memoryview(stdin)
        self.pid = 0
        self.status: int | None = None
        self.cpu_s = 0.0
        self.peak_bytes = 0
        self.reason = ""
        self.detail = ""

    def start(self, job: child.Job) -> None:
        pipes = [os.pipe() for _ in range(4)]
        (in_r, self.in_w), (out_r, out_w), (err_r, err_w), (status_r, status_w) = pipes
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            child.run(job, (in_r, out_w, err_w), status_w)
        for fd in (in_r, out_w, err_w, status_w):
            os.close(fd)
        self.status_r = status_r
        self.out, self.err = (_Stream(fd, self.limits["output_bytes"]) for fd in (out_r, err_r))
        for fd in (self.in_w, out_r, err_r):
            os.set_blocking(fd, False)

    def reap(self) -> None:
        """Collect everything that has ended; the code's own process and strays that came to the slot."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.cpu_s += used.ru_utime + used.ru_stime
            self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
            if pid == self.pid:
                self.status = status

    def end(self, reason: str, detail: str) -> None:
        if not self.reason:
            self.reason, self.detail = reason, detail

    def drive(self) -> None:
        """Serve the pipes until the code has ended or must end."""
        deadline = self.started + self.limits["wall_s"]
        next_watch, ticks = self.started + _WATCH_S, 0
        with selectors.DefaultSelector() as selector:
            selector.register(self.slot.sock, selectors.EVENT_READ, "owner")
            selector.register(self.slot.wake, selectors.EVENT_READ, "wake")
            for stream in (self.out, self.err):
                selector.register(stream.fd, selectors.EVENT_READ, stream)
            if self.stdin:
                selector.register(self.in_w, selectors.EVENT_WRITE, "stdin")
            else:
                self.close_stdin()
            if self.header["id"] in self.slot.cancelled:  # while it waited for its turn
                self.end("killed", "cancelled by the caller")
            while self.status is None and not (self.reason or self.out.truncated or self.err.truncated):
                now = time.monotonic()
                if now >= deadline:
                    self.end("timeout", f"still running after {self.limits['wall_s']:g} s")
                    break
                if now >= next_watch:
                    next_watch, ticks = now + _WATCH_S, ticks + 1
                    self.watch(disk=ticks % _DISK_EVERY == 0)
                    continue
                for key, _ in selector.select(max(0.0, min(deadline, next_watch) - now)):
                    self.serve(key.data, selector)

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
        else:
            if not what.read():
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

    def watch(self, *, disk: bool) -> None:
        """The limits that no rlimit counts over all processes together."""
        if self.slot.confinement is None and sys.platform != "linux":
            return
        pids = tree.descendants(os.getpid())
        if len(pids) > self.limits["processes"]:
            self.end("killed", f"more than {self.limits['processes']} processes")
        if len(pids) > 1 and tree.memory_beyond_own(pids) > self.limits["memory_bytes"]:
            self.end("oom", f"all processes together passed {self.limits['memory_bytes']} bytes")
        if disk:
            max_bytes, max_files = self.limits["disk_bytes"], self.limits["max_files"]
            used, entries = folder.usage((self.slot.work, self.slot.temp), max_files)
            if used > max_bytes:
                self.end("killed", f"{used} bytes in files; the limit is {max_bytes} bytes")
            elif entries > max_files:
                self.end("killed", f"more than {max_files} files")

    def finish(self) -> None:
        """Nothing of the run lives after this.

        Raises:
            HostFailure: a process could not be ended, so that the slot must not be used again.
        """
        self.wall_s = time.monotonic() - self.started
        self.close_stdin()
        self.slot.kill_all()
        gone = tree.kill_below((), self.pid if self.slot.confinement is None else None, self.reap, _REAP_S)
        end = time.monotonic() + _REAP_S
        while self.status is None and time.monotonic() < end:
            self.reap()
            time.sleep(0.001)
        for name, stream in (("stdout", self.out), ("stderr", self.err)):
            stream.drain()
            if stream.truncated:
                self.end("output_limit", f"{name} passed the limit of {stream.limit} bytes")
        refused = os.read(self.status_r, _CHUNK)
        for fd in (self.out.fd, self.err.fd, self.status_r):
            os.close(fd)
        if not gone or self.status is None:
            raise HostFailure("processes of a run outlived SIGKILL")
        if refused:
            raise HostFailure(f"the code was not started: {refused.decode(errors='replace')}")

    def result(self) -> dict[str, Any]:
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        exit_code, killed_by = (code, None) if code >= 0 else (None, -code)
        status, detail = self.classify(exit_code, killed_by)
        return {
            "status": status,
            "detail": detail,
            "exit_code": exit_code,
            "signal": killed_by,
            "stdout_truncated": self.out.truncated,
            "stderr_truncated": self.err.truncated,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
        }

    def classify(self, exit_code: int | None, killed_by: int | None) -> tuple[str, str]:
        cpu_limit = self.limits["cpu_s"]
        if self.reason:
            return self.reason, self.detail
        if exit_code == 0:
            return "ok", ""
        if exit_code is not None:
            last = self.err.kept.rstrip().rpartition(b"\n")[2]
            return ("oom", "MemoryError") if last.startswith(b"MemoryError") else ("error", "")
        overran = killed_by == signal.SIGXCPU or (killed_by == signal.SIGKILL and self.cpu_s >= (cpu_limit or 0))
        if cpu_limit is not None and overran:
            return "timeout", f"used {self.cpu_s:.2f} s of processor time; the limit is {cpu_limit:g} s"
        if killed_by == signal.SIGKILL and self.peak_bytes > _OOM_SHARE * self.limits["memory_bytes"]:
            return "oom", f"killed with {self.peak_bytes} bytes in use"
        name = next((named.name for named in signal.Signals if named == killed_by), f"signal {killed_by}")
        return ("killed" if killed_by == signal.SIGKILL else "error"), f"ended by {name}"


def execute(slot: Slot, header: frames.Header, blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Do one run request: ``(the reply's fields, blobs)`` with stdout, stderr and the fetched files.

    Raises:
        PathRefused: a file to write first was refused.
        HostFailure: the run could not be started or ended; nothing is known about the code.
    """
    stdin, code, *uploads = blobs
    for path, data in zip(header["files"], uploads, strict=True):
        folder.write_file(slot.work, path, data)
    execution = _Execution(slot, header, stdin)
    execution.start(_job(slot, header, code))
    execution.drive()
    execution.finish()
    fields = execution.result()
    fetched, refused, contents = [], {}, []
    for path in header["fetch"]:
        try:
            contents.append(folder.read_file(slot.work, path, header["limits"]["file_bytes"]))
            fetched.append(path)
        except folder.PathRefused as error:
            refused[path] = str(error)
    fields |= {"fetched": fetched, "refused_files": refused}
    return fields, [bytes(execution.out.kept), bytes(execution.err.kept), *contents]


def _job(slot: Slot, header: frames.Header, code: bytes) -> child.Job:
    config, limits = slot.config, header["limits"]
    env = {
        "PATH": config.path,
        **config.env,
        "HOME": slot.work,
        "TMPDIR": slot.temp,
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        **header["env"],
    }
    if config.uid is not None:
        process_limit = limits["processes"] + 1  # the slot counts too
    elif config.process_base is not None:
        process_limit = config.process_base + limits["processes"] + _SHARED_UID_MARGIN
    else:
        process_limit = None
    return child.Job(
        code=code if header["argv"] is None else None,
        argv=tuple(header["argv"] or ()),
        env=env,
        cwd=slot.work,
        limits=limits,
        confinement=slot.confinement,
        address_space=_address_space(),
        process_limit=process_limit,
        keep=config.keep,
    )


def _address_space() -> int | None:
    """Bytes that a child has mapped when it starts; None where RLIMIT_AS does not work (macOS)."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
