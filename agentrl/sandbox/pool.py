"""Sandbox pool: lends fresh sandboxes to many episodes, at most ``max_running`` at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.types.clock import clock_paused

from .interface import Sandbox
from .permits import FifoSemaphore
from .sandbox_spec import SandboxSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """How a pool stands at one moment.

    Attributes:
        waiting: callers who wait for a sandbox.
        starting: sandboxes that are being started.
        running: sandboxes that are lent.
        started: sandboxes that were lent since the pool was made.
        failed: sandboxes that did not start.
        overdue: sandboxes that were ended because their user kept them longer than
            ``max_lifetime_s``.
    """

    waiting: int
    starting: int
    running: int
    started: int
    failed: int
    overdue: int


class SandboxPool:
    """Lends sandboxes; the callers beyond ``max_running`` wait in order, on whatever loop they are.

    A sandbox is ended with everything in it when it comes back, so that nothing of one episode
    reaches the next; a fresh one costs a few milliseconds. Sandboxes of several images share the
    pool's bounds, and each image has a host of its own.

    Args:
        spec: what to build; its ``max_starting`` and ``max_lifetime_s`` hold in each pool.
        max_running: sandboxes at one time, those that are starting or ending included.

    Raises:
        ConfigError: ``max_running`` is below 1, or more than a host of the backend holds.
        MachineError: from :meth:`acquire`, where the machine cannot give what the spec requires.
    """

    def __init__(self, spec: SandboxSpec, *, max_running: int) -> None:
        if max_running < 1:
            raise ConfigError(
                f"SandboxSpec.max_running must be at least 1, got {max_running}"
            )
        spec.check_room(max_running)
        self.spec = spec
        self._permits = FifoSemaphore(max_running)
        self._starting = FifoSemaphore(spec.max_starting or max_running)
        self._lent: dict[
            Sandbox, Callable[[], None]
            # and what stops the clock of its lifetime
        ] = {}
        # starting, started, failed, overdue
        self._counts = Counter[str]()
        # Guards _lent and the counts: callers are on any loop, a lifetime's end on its timer's
        # thread.
        self._lock = threading.Lock()

    async def acquire(self, image: str | None = None) -> Sandbox:
        """A fresh sandbox, started, when one of the permits is free; the caller's clock is paused
        until then.

        Args:
            image: that it runs in; None is the spec's own.

        Raises:
            ConfigError: the backend has no images.
            SandboxError: the pool is closed, or the sandbox did not start.
        """
        spec = self.spec.of_image(image)
        async with AsyncExitStack() as undo:
            await self._permits.take()
            undo.callback(self._permits.give)
            async with self._starting:
                with clock_paused():
                    sandbox = await self._start(spec)
            undo.push_async_callback(sandbox.close)
            with self._lock:
                self._permits.check_open()
                self._lent[sandbox] = self._watch(sandbox)
                self._counts["started"] += 1
            undo.pop_all()
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Give back a sandbox; everything in it ends. A second release does nothing."""
        with self._lock:
            stop_clock = self._lent.pop(sandbox, None)
        if stop_clock is None:
            return
        stop_clock()
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

    def counts(self) -> PoolCounts:
        """How the pool stands now; from any thread."""
        with self._lock:
            return PoolCounts(
                waiting=self._permits.num_waiting + self._starting.num_waiting,
                running=len(self._lent),
                **{
                    name: self._counts[name]
                    for name in ("starting", "started", "failed", "overdue")
                },
            )

    async def _start(self, spec: SandboxSpec) -> Sandbox:
        self._count("starting")
        sandbox: Sandbox | None = None
        try:
            sandbox = await asyncio.to_thread(spec.build)
            await sandbox.start()
        except BaseException:
            # Whoever cancels the start has no sandbox to close.
            self._count("failed")
            if sandbox is not None:
                sandbox.kill_now()
                await sandbox.close()
            raise
        finally:
            self._count("starting", -1)
        return sandbox

    def _count(self, name: str, change: int = 1) -> None:
        with self._lock:
            self._counts[name] += change

    def _watch(self, sandbox: Sandbox) -> Callable[[], None]:
        """Start the clock of a sandbox's lifetime; answers with what stops it."""
        lifetime_s = self.spec.max_lifetime_s
        if lifetime_s is None:
            return lambda: None
        # One daemon thread a sandbox; released sandboxes stop theirs.
        # its user's event loop may be what hangs
        timer = threading.Timer(lifetime_s, self._end_overdue, (sandbox,))
        timer.daemon = True
        timer.start()
        return timer.cancel

    def _end_overdue(self, sandbox: Sandbox) -> None:
        with self._lock:
            if self._lent.pop(sandbox, None) is None:
                return
            self._counts["overdue"] += 1
        logger.warning(
            "a sandbox was ended because its user kept it longer than "
            "SandboxSpec.max_lifetime_s=%g",
            self.spec.max_lifetime_s,
            extra={"event": "sandbox_overdue", "max_lifetime_s": self.spec.max_lifetime_s},
        )
        sandbox.kill_now()
        self._permits.give()

    def _refuse_more(self) -> list[Sandbox]:
        """Lend nothing from here on; what is lent now."""
        self._permits.close("the pool of sandboxes is closed")
        with self._lock:
            return list(self._lent)
