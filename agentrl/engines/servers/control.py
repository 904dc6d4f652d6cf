"""Server control: pause, sleep, update and restart of all servers; all on one event loop."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import PauseMode, Tag
from agentrl.engines.probe import PROBE_TOLERANCE, probe_distance
from agentrl.engines.servers.client import ServerClient, ServerKind
from agentrl.engines.servers.errors import ServerLostError
from agentrl.engines.servers.pool import ServerPool
from agentrl.engines.servers.requests import Requests
from agentrl.engines.servers.server import Server
from agentrl.engines.servers.state import Score, ServersState
from agentrl.engines.weights import WeightArray, open_weights, write_weights
from agentrl.errors import EngineError

logger = logging.getLogger(__name__)


class ServerControl:
    """Everything of an engine of servers but its two faces. Coroutines run on the engine's loop
    alone.

    Args:
        kind: of the servers.
        loop: the engine's.
        receives_weights: whether updates will come.
    """

    def __init__(
        self, kind: ServerKind, loop: asyncio.AbstractEventLoop, *, receives_weights: bool
    ) -> None:
        self.state = ServersState(kind)
        self.pool = ServerPool(
            kind,
            self.state.labels,
            start=self._start_server,
            generates=lambda: self.state.life.serves,
            changed=self.state.notify,
        )
        self.requests = Requests(self.state, self.pool)
        self._loop = loop
        self._receives_weights = receives_weights

    # --- what any thread may call
    # ---------------------------------------------------------------------------------

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Runs a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # --- life
    # -----------------------------------------------------------------------------------------------------  # noqa: E501

    async def start(self) -> None:
        """Brings every server up."""
        await self.pool.start()

    async def close(self) -> None:
        """Ends everything; requests in flight fail."""
        self.state.life.close("it was closed")
        await self.state.notify()
        await self.pool.close()
        weights = self.state.weights_folder(0).parent
        if weights.exists():
            await asyncio.to_thread(shutil.rmtree, weights)

    # --- control
    # --------------------------------------------------------------------------------------------------  # noqa: E501

    async def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``."""
        self.state.life.require_whole("pause")
        self.state.life.pause(mode)
        members = self.pool.serving
        if mode == "drain" or not all(server.client.reports_versions for server in members):
            await self.requests.drained()
        server_mode: Literal["retract", "in_place"] = (
            "in_place" if mode == "in_place" else "retract"
        )
        await self.on_members(
            members, lambda client, _: client.pause(server_mode), may_lose_all=True
        )

    async def resume(self) -> None:
        """See ``EngineControl.resume``."""
        self.state.life.require_resumable()
        await self.on_members(
            self.pool.serving, lambda client, _: client.resume(), may_lose_all=True
        )
        self.state.life.resume()
        await self.state.notify()

    async def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``."""
        self.state.life.require_whole("sleep")
        running = 0 if self.state.life.paused in ("retract", "drain") else self.requests.running
        await self.on_members(
            self.pool.serving, lambda client, _: client.release(tags, running=running)
        )
        self.state.life.sleep(tags)

    async def wake(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.wake``."""
        self.state.life.require_whole("wake")
        await self.on_members(self.pool.serving, lambda client, _: client.regain(tags))
        self.state.life.wake(tags)

    async def on_members(
        self,
        members: Sequence[Server],
        call: Callable[[ServerClient, int], Awaitable[None]],
        *,
        may_lose_all: bool = False,
    ) -> None:
        """Calls servers at once; one that is lost meanwhile is left behind, and started again
        later.

        Raises:
            EngineError: a server refused, or (unless ``may_lose_all``) none is left and none can be
                started.
        """
        live = [
            (place, server) for place, server in enumerate(members) if self.pool.takes_part(server)
        ]
        results = await asyncio.gather(
            *(self._on_member(server, call, place) for place, server in live),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not may_lose_all:
            self.pool.require_any_live()

    async def _on_member(
        self, server: Server, call: Callable[[ServerClient, int], Awaitable[None]], place: int
    ) -> None:
        try:
            await call(server.client, place)
        except ServerLostError as error:
            self.pool.lose(server, str(error))

    async def lose_members(self, members: Sequence[Server], why: str) -> None:
        """None of these servers can be trusted any more.

        Raises:
            EngineError: none can be started again.
        """
        for server in members:
            self.pool.lose(server, why)
        self.pool.require_any_live()

    # --- updates
    # --------------------------------------------------------------------------------------------------  # noqa: E501

    async def begin_update(self, version: int) -> None:
        """Opens an update; servers that are starting come up first."""
        self.state.life.require_updatable(version)
        await self.pool.settle()
        await self.pool.find_returning()
        self.pool.require_any_live()
        self.state.life.begin_update(version)

    def update_members(self) -> tuple[Server, ...]:
        """The servers that an update reaches."""
        return self.pool.reachable

    async def updated(self, version: int, weights: Mapping[str, WeightArray]) -> None:
        """The servers have new weights; those that were lost are started with them."""
        self.state.weights = weights
        self.state.stale_kv = "never" if self.state.flushes_updates else "always"
        self.state.kv.clear()
        self.state.life.end_update(version)
        self.pool.updated()
        await self.pool.any_serving()
        await self.state.notify()

    async def update_cancelled(self) -> None:
        """No tensor was sent."""
        self.state.life.end_update(None)

    async def mark_corrupt(self, problem: str) -> None:
        """The servers hold parts of two versions: nothing is served any more."""
        self.state.life.mark_corrupt(problem)
        logger.warning(
            "%s: the update is refused, and the engine answers nothing more",
            problem,
            extra={"event": "update_refused", "engine": Path(self.state.kind.place.folder).name},
        )
        await self.state.notify()

    async def verify(self) -> None:
        """Every server holds what it was sent, by its own digests where it has any."""
        if self.state.weights is None:
            raise EngineError(
                "checksum: no weights were sent yet, so that there is nothing to compare with; "
                "publish first",
                retryable=False,
            )
        for server in self.pool.serving:
            await server.client.verify(self.state.weights)

    async def score(self, token_ids: Sequence[int]) -> dict[str, npt.NDArray[np.float32]]:
        """See ``EngineControl.score``; a server that is lost meanwhile is scored when it
        restarts.
        """
        self.state.life.require_whole("score")
        scores: dict[str, npt.NDArray[np.float32]] = {}

        async def one(server: Server) -> None:
            try:
                scores[server.name] = await server.client.score(token_ids)
            except ServerLostError as error:
                self.pool.lose(server, str(error))

        await asyncio.gather(*(one(server) for server in self.pool.serving))
        if scores:
            version = self.state.life.policy_version
            first = next(iter(scores.values()))
            self.state.score = Score(version, tuple(token_ids), first)
        return scores

    # --- inside
    # ---------------------------------------------------------------------------------------------------  # noqa: E501

    async def _start_server(self, server: Server) -> None:
        """Starts a server with the weights served now."""
        life = self.state.life
        kind = self.state.kind
        while life.updating:
            await self.state.wait_changed(timeout_s=0.2)
        if life.fault:
            raise EngineError(life.fault, retryable=False)
        weights = self.state.weights
        version = life.policy_version
        model = Path(kind.place.model)
        if weights is None and server.given and not self._receives_weights:
            # no update will bring them
            weights = await asyncio.to_thread(open_weights, model, kind.place.dtype)
        if weights is not None and not server.given:
            folder = self.state.weights_folder(version)
            if not folder.exists():
                await asyncio.to_thread(write_weights, folder, model, weights.values())
            model = folder
        await server.start(model, self.state.labels.label(version))
        if weights is not None:
            await server.client.verify(weights)
        await self._compare_score(server, version)
        if life.policy_version != version:
            raise ServerLostError(
                f"{server.name} came up with version {version} after {life.policy_version} was sent"
            )

    async def _compare_score(self, server: Server, version: int) -> None:
        """A server that was started again agrees with those that were verified after the
        publish.
        """
        score = self.state.score
        if score is None or score.version != version:
            return
        dtype = self.state.kind.place.dtype
        distance = probe_distance(score.logprobs, await server.client.score(score.token_ids))
        if distance > PROBE_TOLERANCE[dtype]:
            raise EngineError(
                f"{server.name} came up with other weights than version {version}: its logprobs of "
                f"the probe differ by {distance:.3g} on average, {PROBE_TOLERANCE[dtype]:g} is "
                f"allowed in {dtype}"
            )
