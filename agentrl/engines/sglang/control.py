"""Control over all servers of an engine: pause, sleep, update, start again; all on one event loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from agentrl.engines.base import PauseMode, Tag
from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.errors import ServerLostError
from agentrl.engines.sglang.pool import ServerFleet
from agentrl.engines.sglang.requests import Requests
from agentrl.engines.sglang.server import Server
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.state import EngineState
from agentrl.engines.sglang.weights import WeightArray, open_weights, write_weights
from agentrl.errors import EngineError

__all__ = ["ServerControl"]


class ServerControl:
    """Everything of an SGLangEngine but its two faces. Its coroutines run on the engine's loop alone.

    Args:
        spec: how.
        loop: the engine's.
    """

    def __init__(self, spec: SGLangEngineSpec, loop: asyncio.AbstractEventLoop) -> None:
        self.state = EngineState(spec)
        self.fleet = ServerFleet(
            spec,
            start=self._start_server,
            generates=lambda: self.state.serves,
            changed=self.state.notify,
        )
        self.requests = Requests(self.state, self.fleet)
        self._loop = loop

    # --- what any thread may call ---------------------------------------------------------------------------------

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Runs a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Brings every server up."""
        await self.fleet.start()

    async def close(self) -> None:
        """Ends everything; requests in flight fail."""
        self.state.closed = True
        await self.state.notify()
        await self.fleet.close()
        weights = self.state.weights_folder(0).parent
        if weights.exists():
            await asyncio.to_thread(shutil.rmtree, weights)

    # --- control --------------------------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``."""
        self.state.require_whole("pause")
        self.state.clock.stop()
        self.state.paused = mode
        members = self.fleet.serving
        spanless = not all(server.client.dialect.reports_spans for server in members)
        if mode == "drain" or spanless:
            await self.requests.drained()
        server_mode: Literal["retract", "in_place"] = (
            "in_place" if mode == "in_place" else "retract"
        )
        await self.on_members(
            members, lambda client, _: client.pause(server_mode), may_lose_all=True
        )

    async def resume(self) -> None:
        """See ``EngineControl.resume``."""
        self.state.require_whole("resume")
        if self.state.updating or self.state.asleep:
            mend = (
                "commit the update"
                if self.state.updating
                else f"call wake({sorted(self.state.asleep)})"
            )
            raise EngineError(
                f"resume: the engine is {'updating' if self.state.updating else 'asleep'}; {mend} first"
            )
        await self.on_members(
            self.fleet.serving, lambda client, _: client.resume(), may_lose_all=True
        )
        self.state.paused = None
        self.state.clock.go()
        await self.state.notify()

    async def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``."""
        self.state.require_whole("sleep")
        running = 0 if self.state.paused in ("retract", "drain") else self.requests.running
        await self.on_members(
            self.fleet.serving, lambda client, _: client.release(tags, running=running)
        )
        self.state.asleep |= set(tags)
        if self.state.paused is None:
            self.state.paused = "drain"
            self.state.clock.stop()

    async def wake(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.wake``."""
        self.state.require_whole("wake")
        await self.on_members(self.fleet.serving, lambda client, _: client.regain(tags))
        self.state.asleep -= set(tags)

    async def on_members(
        self,
        members: Sequence[Server],
        call: Callable[[ServerClient, int], Awaitable[None]],
        *,
        may_lose_all: bool = False,
    ) -> None:
        """Calls servers at once; one that is lost meanwhile is left behind, and started again later.

        Raises:
            EngineError: a server refused, or (unless ``may_lose_all``) none is left and none can be started.
        """
        live = [
            (place, server) for place, server in enumerate(members) if self.fleet.takes_part(server)
        ]
        results = await asyncio.gather(
            *(self._on_member(server, call, place) for place, server in live),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not may_lose_all:
            self.fleet.require_any_live()

    async def _on_member(
        self, server: Server, call: Callable[[ServerClient, int], Awaitable[None]], place: int
    ) -> None:
        try:
            await call(server.client, place)
        except ServerLostError as error:
            self.fleet.lose(server, str(error))

    async def lose_members(self, members: Sequence[Server], why: str) -> None:
        """None of these servers can be trusted any more.

        Raises:
            EngineError: none can be started again.
        """
        for server in members:
            self.fleet.lose(server, why)
        self.fleet.require_any_live()

    # --- updates --------------------------------------------------------------------------------------------------

    async def begin_update(self, version: int) -> None:
        """Opens an update; servers that are starting come up first."""
        self.state.require_whole("begin_update")
        if self.state.paused is None or self.state.updating:
            what = "another update is open" if self.state.updating else "it is serving"
            raise EngineError(
                f"begin_update({version}) needs a paused engine, but {what}; call pause('retract') first",
                retryable=False,
            )
        await self.fleet.settle()
        await self.fleet.find_returning()
        self.fleet.require_any_live()
        self.state.updating = True

    def update_members(self) -> tuple[Server, ...]:
        """The servers that an update reaches."""
        return self.fleet.reachable

    async def updated(self, version: int, weights: Mapping[str, WeightArray]) -> None:
        """The servers have new weights; those that were lost are started with them."""
        self.state.policy_version, self.state.weights = version, weights
        self.state.stale_kv = "never" if self.state.flushes_updates else "always"
        self.state.kv.clear()
        self.state.updating = False
        self.fleet.updated()
        await self.fleet.any_serving()
        await self.state.notify()

    async def update_cancelled(self) -> None:
        """No tensor was sent."""
        self.state.updating = False

    async def torn(self, problem: str) -> None:
        """The servers hold parts of two versions: nothing is served any more."""
        self.state.updating = False
        self.state.fault = (
            f"the engine's weights are torn ({problem}); build it again, or use another"
        )
        await self.state.notify()

    async def verify(self) -> None:
        """Every server holds what it was sent."""
        if self.state.weights is None:
            raise EngineError(
                "checksum: no weights were sent yet, so that there is nothing to compare with; publish first",
                retryable=False,
            )
        for server in self.fleet.serving:
            await server.verify(self.state.weights, self.state.num_kv_heads)

    # --- inside ---------------------------------------------------------------------------------------------------

    async def _start_server(self, server: Server) -> None:
        """Starts a server with the weights served now."""
        while self.state.updating:
            await self.state.wait_changed(timeout_s=0.2)
        if self.state.fault:
            raise EngineError(self.state.fault, retryable=False)
        weights, version, model = (
            self.state.weights,
            self.state.policy_version,
            Path(self.state.spec.model_path),
        )
        if weights is None and server.given and self.state.spec.sender is None:
            weights = await asyncio.to_thread(
                open_weights, model, self.state.spec.dtype
            )  # no update will bring them
        if weights is not None and not server.given:
            folder = self.state.weights_folder(version)
            if not folder.exists():
                await asyncio.to_thread(write_weights, folder, model, weights.values())
            model = folder
        await server.start(model, self.state.label(version))
        if weights is not None:
            await server.verify(weights, self.state.num_kv_heads)
        if self.state.policy_version != version:
            raise ServerLostError(
                f"{server.name} came up with version {version} after {self.state.policy_version} was sent"
            )
