"""Sandboxes for many episodes at once: at most ``max_running``, each fresh for its user."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.errors import ConfigError

from .interface import Sandbox
from .permits import Permits
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
        self._permits = Permits(max_running)
        self._lent: set[Sandbox] = set()
        self._lock = threading.Lock()

    async def acquire(self) -> Sandbox:
        """A fresh sandbox, when one of the permits is free.

        Raises:
            SandboxError: the pool is closed.
        """
        await self._permits.take()
        try:
            sandbox = await asyncio.to_thread(self.spec.build)
            with self._lock:
                self._permits.check_open()
                self._lent.add(sandbox)
        except BaseException:
            self._permits.give()
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
            self._permits.give()

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
        await asyncio.gather(*(self.release(sandbox) for sandbox in self._refuse_more()))

    def kill_now(self) -> None:
        """End every sandbox at once without waiting; for exit paths."""
        for sandbox in self._refuse_more():
            sandbox.kill_now()

    def _refuse_more(self) -> list[Sandbox]:
        """Lend nothing from here on; what is lent now."""
        self._permits.close("the pool of sandboxes is closed")
        with self._lock:
            return list(self._lent)
