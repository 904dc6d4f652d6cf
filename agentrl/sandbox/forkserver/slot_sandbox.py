"""Slot sandbox: the sandbox that lives in a slot of the fork server, whatever it enters."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox.host.frames import Frame
from agentrl.sandbox.interface import (
    ExecResult,
    FileHash,
    FileRefusedError,
    Limits,
    Persist,
    Sandbox,
)
from agentrl.sandbox.permits import FifoSemaphore

from .server import ForkServer, SlotHandle

# how long a slot may be silent beyond the deadlines of what it was asked
_STALL_S = 60.0
_CLOSE_S = 20.0
_SET_AT_START = ("memory_bytes", "processes", "file_bytes", "open_files")


class ForkedSandbox(Sandbox):
    """A session in a slot, opened on the first use.

    Args:
        server: gives the fork server, starting it if need be.
        limits: for every run that brings none of its own.
        persist: what lasts over runs that do not say so themselves.
        start_timeout_s: seconds in which the slot must be open, and before it the host where it is
            the first.
    """

    def __init__(
        self,
        server: Callable[[], ForkServer],
        limits: Limits,
        *,
        persist: Persist = "files",
        start_timeout_s: float = 60.0,
    ) -> None:
        self.limits = limits
        self._persist = persist
        self._start_timeout_s = start_timeout_s
        self._server = server
        self._slot: SlotHandle | None = None
        self._closed = False
        # Guards _slot, _closed and _allowed_s; held for no wait. Callers are on any thread.
        self._lock = threading.Lock()
        self._turn = FifoSemaphore(1)
        # the deadlines of everything asked and not yet answered
        self._allowed_s = 0.0

    @property
    def notes(self) -> str:
        with self._lock:
            slot = self._slot
        facts = {} if slot is None else slot.server.facts
        if slot is None or not (facts["namespaced"] or facts["abi"]):
            return ""
        found = {
            "namespaces of its own for each run": facts["namespaced"],
            "a memory cgroup": slot.has_cgroup,
            "memory watched": not slot.has_cgroup,
            "files counted while a run goes on": facts["abi"] and not facts["bounded"],
            f"Landlock ABI {facts['abi']}": facts["abi"],
            "its own uid": facts["own_uid"],
            "the owner's uid": not facts["own_uid"],
        }
        return ", ".join(name for name, holds in found.items() if holds)

    async def start(self) -> None:
        await self._open()

    async def run(
        self,
        code: str | bytes | None = None,
        *,
        argv: Sequence[str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        persist: Persist | None = None,
    ) -> ExecResult:
        limits = limits or self.limits
        if timeout_s is not None:
            limits = limits.replace(wall_s=timeout_s)
        _check_program(code, argv, env or {})
        persist = "files" if argv is not None else persist or self._persist
        if persist == "interpreter":
            _check_lasting(limits, self.limits)
        source = (
            code.encode(errors="surrogatepass") if isinstance(code, str) else code or b""
        )
        uploads = dict(files or {})
        for path, data in uploads.items():
            _check_size(path, data, limits)
        header = {
            "op": "run",
            "argv": None if argv is None else list(argv),
            "files": list(uploads),
            "fetch": list(fetch),
            "env": dict(env or {}),
            "limits": limits.model_dump(),
            "persist": persist,
        }
        server = (await self._open()).server
        asked = time.monotonic()
        # its own turn first, so that no permit lies idle behind its other run
        async with (
            self._turn,
            server.executing,
        ):
            queued_s = time.monotonic() - asked
            reply, blobs = await self._ask(
                header, [stdin, source, *uploads.values()], limits.wall_s
            )
        stdout, stderr, *contents = blobs
        return ExecResult(
            **reply["result"],
            stdout=stdout,
            stderr=stderr,
            queued_s=queued_s,
            files=MappingProxyType(dict(zip(reply["fetched"], contents, strict=True))),
            refused_files=MappingProxyType(reply["refused_files"]),
        )

    async def write_file(self, path: str, data: bytes) -> None:
        _check_size(path, data, self.limits)
        await self._ask(
            {"op": "write", "path": path, "limits": self.limits.model_dump()}, [data]
        )

    async def read_file(self, path: str) -> bytes:
        _, blobs = await self._ask(
            {"op": "read", "path": path, "limit": self.limits.file_bytes}
        )
        return blobs[0]

    async def read_lines(
        self, path: str, first: int = 1, last: int | None = None, *, max_bytes: int
    ) -> tuple[bytes, int, bool]:
        header = {"op": "lines", "path": path, "limit": self.limits.file_bytes}
        reply, blobs = await self._ask({**header, "range": [first, last, max_bytes]})
        return blobs[0], reply["num_lines"], reply["cut"]

    async def list_files(self) -> Mapping[str, int]:
        reply, _ = await self._ask({"op": "list"})
        return MappingProxyType(dict(reply["listed"]))

    async def hash_files(self, largest: int) -> tuple[Mapping[str, FileHash], bool]:
        reply, _ = await self._ask({"op": "hash", "largest": largest})
        found = {path: FileHash(size, sha256) for path, size, sha256 in reply["hashed"]}
        return MappingProxyType(found), reply["complete"]

    async def reset(self) -> None:
        await self._end_slot()
        with self._lock:
            self._closed = False

    async def close(self) -> None:
        with self._lock:
            self._closed = True
        await self._end_slot()

    def kill_now(self) -> None:
        with self._lock:
            slot = self._slot
        if slot is not None:
            slot.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError(
                "the sandbox is closed; reset() it or open another", retryable=False
            )

    async def _open(self) -> SlotHandle:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                return await self._opened()
        except TimeoutError:
            self.kill_now()
            raise SandboxError(
                "a sandbox was not ready within "
                f"SandboxSpec.start_timeout_s={self._start_timeout_s:g}; "
                "raise it, or start fewer at one time (SandboxSpec.max_starting)"
            ) from None

    async def _opened(self) -> SlotHandle:
        with self._lock:
            self._check_open()
            slot = self._slot
        # again where the host was retired before it gave a slot
        while slot is None:
            # starting the host takes a moment, on its first use; never on the event loop
            server = await asyncio.to_thread(self._server)
            with self._lock:
                self._check_open()
                slot = self._slot = self._slot or server.open_slot()
        # others may wait for it too
        opened = asyncio.wrap_future(slot.opened)
        # a shield whose waiter is cancelled leaves an error unread, of which asyncio would tell
        opened.add_done_callback(lambda done: done.cancelled() or done.exception())
        reply, _ = await asyncio.shield(opened)
        if "failed" in reply:
            raise SandboxError(reply["failed"])
        return slot

    async def _ask(
        self, header: dict[str, Any], blobs: Sequence[bytes] = (), allowed_s: float = 0.0
    ) -> Frame:
        slot = await self._open()
        with self._lock:
            self._allowed_s += allowed_s
            patience_s = self._allowed_s + _STALL_S
        number, future = slot.request(header, blobs)
        try:
            reply, out = await asyncio.wait_for(asyncio.wrap_future(future), patience_s)
        except asyncio.CancelledError:
            # its reply is dropped
            slot.link.send({"op": "cancel", "target": number})
            raise
        except TimeoutError:
            slot.kill()
            raise SandboxError(
                f"the sandbox did not answer {header['op']!r} within {patience_s:g} s"
            ) from None
        except SandboxError:
            slot.kill()
            raise
        finally:
            with self._lock:
                self._allowed_s -= allowed_s
        if "refused" in reply:
            raise FileRefusedError(reply["refused"])
        if "failed" in reply:
            slot.kill()
            raise SandboxError(f"the sandbox failed: {reply['failed']}")
        return reply, out

    async def _end_slot(self) -> None:
        with self._lock:
            slot = self._slot
            self._slot = None
        if slot is None:
            return
        slot.close()
        try:
            await asyncio.wait_for(asyncio.wrap_future(slot.closed), _CLOSE_S)
        except TimeoutError:
            slot.kill()
            raise SandboxError(f"a sandbox did not end within {_CLOSE_S:g} s") from None


def _check_program(
    code: str | bytes | None, argv: Sequence[str] | None, env: Mapping[str, str]
) -> None:
    if (code is None) == (argv is None):
        raise ValueError("give either code or argv, not both and not neither")
    if argv is not None and (
        isinstance(argv, str) or not argv or not all(isinstance(arg, str) for arg in argv)
    ):
        raise ValueError(f"argv must be a non-empty sequence of strings, got {argv!r}")
    if any("\0" in arg for arg in argv or ()):
        raise ValueError("argv: an argument cannot hold a NUL character")
    for name, value in env.items():
        text = (name + value).encode(errors="replace").decode()
        if not name or "=" in name or "\0" in text or text != name + value:
            raise ValueError(
                f"env: {name!r}={value!r} cannot be a variable; a name holds no '=', and both are "
                "UTF-8 without a NUL"
            )


def _check_lasting(limits: Limits, own: Limits) -> None:
    for name in _SET_AT_START:
        if getattr(limits, name) != getattr(own, name):
            raise ConfigError(
                f"{name}={getattr(limits, name)} cannot be set for one run of an interpreter that "
                f"keeps its variables (it was started with {getattr(own, name)}); set "
                f"Limits.{name}, or run with persist='files'"
            )


def _check_size(path: str, data: bytes, limits: Limits) -> None:
    if len(data) > limits.file_bytes:
        raise FileRefusedError(
            f"{path!r}: {len(data)} bytes exceed the limit of {limits.file_bytes}; raise "
            "Limits.file_bytes"
        )
