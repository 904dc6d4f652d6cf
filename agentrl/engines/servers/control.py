"""Server control: pause, sleep, update and restart of all servers.

Calls come from the engine's owner's thread and block; their coroutines run on the engine's loop,
in a thread of its own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import PauseMode, Tag, WeightSender
from agentrl.engines.held_weights import HeldTensor
from agentrl.engines.probe import Probe
from agentrl.engines.servers.client import ServerClient, ServerKind
from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.servers.pool import ServerPool
from agentrl.engines.servers.requests import Requests
from agentrl.engines.servers.server import Server
from agentrl.engines.servers.state import ServersState
from agentrl.engines.weights import num_experts, read_config
from agentrl.errors import EngineError, StaleWeightsError, WeightMismatchError
from agentrl.types.loop_thread import LoopThread

T = TypeVar("T")
P = ParamSpec("P")
Control = TypeVar("Control", bound="ServerControl")

logger = logging.getLogger(__name__)

_CLOSE_S = 60.0


def blocking(
    work: Callable[Concatenate[Control, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Control, P], T]:
    """A coroutine of the engine's loop as a call of any other thread, which waits for it."""

    @functools.wraps(work)
    def call(control: Control, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return control.submit(work(control, *args, **kwargs)).result()

    return call


class ServerControl:
    """Starts the servers, and does what one owner may do with all of them.

    Args:
        kind: of the servers.
        sender: brings an update's tensors to them; None for weights that never change.
    """

    def __init__(self, kind: ServerKind, sender: WeightSender | None) -> None:
        self.sender = sender
        self.state = ServersState(kind)
        self.pool = ServerPool(self.state, self._start_server)
        self.requests = Requests(self.state, self.pool)
        # held by the one server that catches up: a sender has memory for one update at a time
        self._catching_up = asyncio.Lock()
        # all of pool, requests and updates happens on its loop
        self._thread = LoopThread(f"agentrl-{kind.spec.section}-engine")
        try:
            self.submit(self._start()).result()
        except BaseException:
            self.close()
            raise

    @property
    def runs(self) -> bool:
        """Whether it was not closed."""
        return self._thread.thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the engine's loop.

        Raises:
            EngineError: the engine is closed.
        """
        if not self.runs:
            # A coroutine that never runs and is not closed is warned of as never awaited.
            work.close()
            raise EngineError("the engine is closed; build it again")
        return self._thread.submit(work)

    def close(self) -> None:
        """Ends the servers that it started; requests in flight fail. A second call does nothing."""
        if not self.runs:
            return
        with ExitStack() as ends:
            ends.callback(self._thread.stop, _CLOSE_S)
            ends.callback(lambda: self.submit(self._end()).result(_CLOSE_S))
            # first, and the servers end also where weights cannot be removed
            if self.sender is not None:
                ends.callback(self.sender.close)

    @blocking
    async def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``. A server that cannot say which weights made a token is
        drained in any mode."""
        life = self.state.life
        life.require_whole("pause")
        members = self.pool.serving
        served = life.serves
        # First, so that no further request goes out, and what runs can drain.
        life.pause(mode)
        if mode == "drain" or not all(server.client.reports_versions for server in members):
            self.state.draining = served
            try:
                await self.requests.drained()
            finally:
                self.state.draining = False
        await self.on_members(
            members, lambda client, _: client.pause(mode), may_lose_all=True
        )

    @blocking
    async def resume(self) -> None:
        """See ``EngineControl.resume``."""
        self.state.life.require_resumable()
        # Servers first: a request goes out only where all of them generate again.
        await self.on_members(
            self.pool.serving, lambda client, _: client.resume(), may_lose_all=True
        )
        self.state.life.resume()
        await self.state.notify()

    @blocking
    async def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``; a server without a memory saver keeps its memory."""
        life = self.state.life
        life.require_whole("sleep")
        # One that came up later would take the memory that the others gave back.
        await self.pool.settle()
        members = self.pool.reachable
        running = 0 if life.paused in ("retract", "drain") else self.requests.running
        # Nothing is released so, and one that refuses leaves the others as they were.
        await self.on_members(
            members, lambda client, _: client.release((), running=running)
        )
        # Before the calls: a server that dies in its own starts again once the engine is awake.
        life.sleep(tags)
        await self.on_members(
            members, lambda client, _: client.release(tags, running=running)
        )

    @blocking
    async def wake(self, tags: Sequence[Tag]) -> None:
        """Takes back what ``sleep`` released; other tags are left out."""
        self.state.life.require_whole("wake")
        await self.on_members(self.pool.reachable, lambda client, _: client.regain(tags))
        self.state.life.wake(tags)
        if not self.state.life.asleep:
            await self.state.notify()
            # One that died meanwhile starts only now. It may wait for the next update, which the
            # caller does not begin before this returns.
            await self.pool.any_reachable()

    @blocking
    async def score(self, token_ids: Sequence[int]) -> dict[str, npt.NDArray[np.float32]]:
        """See ``EngineControl.score``: of every server that serves; one that is lost meanwhile is
        scored when it restarts.
        """
        self.state.life.require_weights("score")
        scores = await self.on_members(
            self.pool.serving, lambda client, _: client.score(token_ids), may_lose_all=True
        )
        if scores:
            routed = bool(num_experts(read_config(self.state.kind.place.model)))
            self.state.probe = Probe(tuple(token_ids), next(iter(scores.values())), routed)
        return scores

    async def on_members(
        self,
        members: Sequence[Server],
        call: Callable[[ServerClient, int], Awaitable[T]],
        *,
        may_lose_all: bool = False,
    ) -> dict[str, T]:
        """Calls servers at once; one that is lost meanwhile is left behind, and started again
        later.

        Returns:
            Their answers, by the servers' names.

        Raises:
            EngineError: a server refused, or (unless ``may_lose_all``) none is left and none can be
                started.
        """
        answers: dict[str, T] = {}

        async def on_member(place: int, server: Server) -> None:
            try:
                answers[server.name] = await call(server.client, place)
            except ServerLostError as error:
                self.pool.lose(server, str(error))

        # All answers are waited for, so that no call goes on behind a refusal.
        results = await asyncio.gather(
            *(
                on_member(place, server)
                for place, server in enumerate(members)
                if server.reachable
            ),
            return_exceptions=True,
        )
        for failure in filter(None, results):
            raise failure
        if not may_lose_all:
            self.pool.require_any_live()
        return answers

    # --- for the update

    def catch_up(self, version: int, server: Server) -> Any:
        """What a sender drives for one server alone; see ``servers.update.CatchUp``."""
        raise NotImplementedError

    @blocking
    async def open_update(self, version: int) -> None:
        """Opens an update; servers that are starting come up first."""
        self.state.life.require_updatable(version)
        await self.pool.settle()
        await self.pool.find_returning()
        self.pool.require_any_live()
        self.state.life.begin_update(version)

    @blocking
    async def updated(self, version: int, checksums: Mapping[str, int]) -> None:
        """The servers have new weights; those that were lost are given them."""
        self.state.sent = checksums
        # Until the new weights are scored, a server that starts is compared by digests alone.
        self.state.probe = None
        self.state.stale_kv = "never" if self.state.flushes_updates else "always"
        self.state.kv.clear()
        self.state.life.end_update(version)
        self.pool.updated()
        if not self.state.life.asleep:
            await self.pool.any_serving()
        await self.state.notify()

    @blocking
    async def mark_corrupt(self, problem: str) -> None:
        """The servers hold parts of two versions: nothing is served any more."""
        self.state.life.mark_corrupt(problem)
        logger.warning(
            "%s: the update is refused, and the engine answers nothing more",
            problem,
            extra={"event": "update_refused", "engine": self.pool.engine},
        )
        await self.state.notify()

    @blocking
    async def cancel_update(self) -> None:
        """No tensor was sent: the old weights go on being served."""
        self.state.life.end_update(None)

    async def compare_digests(self, joining: Server | None = None) -> dict[HeldTensor, str]:
        """The digests of their weights that servers tell alike; none where they tell none.

        Args:
            joining: a server that does not serve yet, beside those that do.

        Raises:
            WeightMismatchError: one tells another.
            EngineError: one holds a tensor that the model has not, so that no update would reach
                it.
            ServerLostError: ``joining`` is lost; others are left behind.
        """
        members = self.pool.serving
        digests = await self.on_members(
            members, lambda client, _: client.digests(), may_lose_all=True
        )
        if joining is not None:
            members += (joining,)
            digests[joining.name] = await joining.client.digests()
        told: dict[HeldTensor, tuple[str, str]] = {}
        names = self.state.names
        for server in members:
            for held, digest in digests.get(server.name, {}).items():
                first, expected = told.setdefault(held, (server.name, digest))
                if digest != expected:
                    raise WeightMismatchError(
                        f"{server.name} holds other weights than {first}, by their own digests of "
                        f"{held.name}; restart it, and look at its log"
                    )
                if not names.issuperset(held.parts):
                    raise EngineError(
                        f"{server.name} serves another model: {self.state.kind.place.model} has no "
                        f"{held.name}; start it with this model",
                        retryable=False,
                    )
        return {held: digest for held, (_, digest) in told.items()}

    # --- inside

    async def _start(self) -> None:
        await self.pool.start()
        # no update will make them agree
        if self.sender is None and len(self.pool.servers) > 1:
            await self.compare_digests()

    async def _start_server(self, server: Server) -> None:
        """Starts a server, and gives it the weights served now, by which the others were
        verified."""
        life = self.state.life
        place = self.state.kind.place
        await self._until_still()
        label = self.state.labels.label(life.policy_version)
        # No answer may be made by the weights that a server begins with where others were sent.
        await server.start(Path(place.model), "before" if self.state.sent else label)
        await self._until_still()
        server.state = "joining"
        if self.state.sent:
            await self._catch_up(server)
        if self.pool.serving and not life.weightless:
            await self.compare_digests(server)
        if (probe := self.state.probe) is not None:
            found = await server.client.score(probe.token_ids)
            if difference := probe.difference(
                found, place.dtype, probe.rounding(place.dtype)
            ):
                raise EngineError(
                    f"{server.name} came up with other weights than version {life.policy_version}: "
                    f"{difference}"
                )

    async def _until_still(self) -> None:
        """Waits while an update is open, and while the engine sleeps: its memory is the
        trainer's."""
        life = self.state.life
        while life.updating or life.asleep:
            await self.state.wait_changed(timeout_s=0.2)
        if life.fault:
            raise EngineError(life.fault, retryable=False)

    async def _catch_up(self, server: Server) -> None:
        """Gives a server that was started again the weights served now, or has the next update take
        it along, where the ranks keep those of the next version already."""
        assert self.sender is not None, "weights were sent"
        life = self.state.life
        try:
            async with self._catching_up:
                version = life.policy_version
                update = self.catch_up(version, server)
                await asyncio.to_thread(self.sender.catch_up, update)
        except StaleWeightsError:
            server.state = "returning"
            await self.state.notify()
            while server.state == "returning" and life.policy_version == version:
                await self.state.wait_changed(timeout_s=0.2)
                self.state.life.require_whole("start")
            if server.state != "returning":
                raise ServerLostError(f"{server.name} was lost in an update") from None
            server.state = "joining"

    async def _end(self) -> None:
        self.state.life.close("it was closed")
        await self.state.notify()
        await self.pool.close()
        # the loop ends next: who still waits for a task there must hear so
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
