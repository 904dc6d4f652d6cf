"""Sandboxes for many episodes at once: at most ``max_running``, each fresh for its user."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from agentrl.errors import ConfigError, SandboxError

from .interface import Sandbox
from .spec import SandboxSpec


class SandboxPool:
    """Lends sandboxes; the callers beyond ``max_running`` wait in order, on whatever loop they are.

    A sandbox is ended with everything in it when it comes back, so that nothing of one episode
    reaches the next; a fresh one costs a few milliseconds.

    Args:
        spec: what to build.
        max_running: sandboxes lent at one time.

    Raises:
        ConfigError: ``max_running`` is below 1.
        MachineError: from :meth:`acquire`, where the machine cannot give what the spec requires.
    """

    def __init__(self, spec: SandboxSpec, *, max_running: int) -> None:
        if max_running < 1:
            raise ConfigError(f"sandbox.max_running must be at least 1, got {max_running}")
        self.spec = spec
        self._free = max_running
        self._waiting: deque[Future[None]] = deque()
        self._lent: set[Sandbox] = set()
        self._closed = False
        self._lock = threading.Lock()

    async def acquire(self) -> Sandbox:
        """A fresh sandbox, when one of the permits is free.

        Raises:
            SandboxError: the pool is closed.
        """
        permit: Future[None] | None = None
        with self._lock:
            self._check_open()
            if self._free:
                self._free -= 1
            else:
                permit = Future()
                self._waiting.append(permit)
        if permit is not None:
            await self._wait(permit)
        try:
            sandbox = await asyncio.to_thread(self.spec.build)
            with self._lock:
                self._check_open()
                self._lent.add(sandbox)
        except BaseException:
            self._give_permit()
            raise
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Give back a sandbox; everything in it ends. A second release does nothing."""
        with self._lock:
            if sandbox not in self._lent:
                return
            self._lent.remove(sandbox)
        try:
            await sandbox.close()
        finally:
            self._give_permit()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Sandbox]:
        """``async with pool.session() as sandbox``: acquired, and released whatever happens."""
        sandbox = await self.acquire()
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def close(self) -> None:
        """End every sandbox that is lent, and refuse those who wait."""
        self._refuse_waiting()
        await asyncio.gather(*(self.release(sandbox) for sandbox in list(self._lent)))

    def kill_now(self) -> None:
        """End every sandbox at once without waiting; for exit paths."""
        self._refuse_waiting()
        for sandbox in list(self._lent):
            sandbox.kill_now()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the pool of sandboxes is closed", retryable=False)

    def _refuse_waiting(self) -> None:
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for permit in waiting:
            if permit.set_running_or_notify_cancel():
                permit.set_exception(SandboxError("the pool of sandboxes is closed", retryable=False))

    async def _wait(self, permit: Future[None]) -> None:
        try:
            await asyncio.wrap_future(permit)
        except asyncio.CancelledError:
            if permit.done() and not permit.cancelled():
                self._give_permit()  # it came while the waiter was being cancelled
            raise

    def _give_permit(self) -> None:
        with self._lock:
            while self._waiting:
                permit = self._waiting.popleft()
                if permit.set_running_or_notify_cancel():
                    permit.set_result(None)
                    return
            self._free += 1
