"""The engine's state and its servers, all on one event loop: requests in, completions out, whatever a server does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl.errors import EngineError
from agentrl.rollouts.engine import PauseMode, Tag
from agentrl.rollouts.request_check import check_request
from agentrl.rollouts.sglang.client import ServerClient
from agentrl.rollouts.sglang.clock import EngineClock
from agentrl.rollouts.sglang.errors import ServerLostError
from agentrl.rollouts.sglang.fleet import ServerFleet
from agentrl.rollouts.sglang.servers import Server
from agentrl.rollouts.sglang.spec import SGLangEngineSpec
from agentrl.rollouts.sglang.weights import WeightArray, write_weights
from agentrl.rollouts.sglang.wire import generate_body, read_answer
from agentrl.types import Completion, EngineInfo, GenerateRequest, StaleKV

__all__ = ["EngineCore"]

_ATTEMPTS = 4
"""Servers that a request is tried on; each failure is looked into first."""


@dataclass(slots=True)
class _Flight:
    """A request in flight: the server that has it and what it is called there."""

    request: GenerateRequest
    server: Server | None = None
    rid: str = ""


class EngineCore:
    """Everything of an SGLangEngine but its two faces. Its coroutines run on the engine's loop alone.

    Args:
        spec: how.
        loop: the engine's.
    """

    def __init__(self, spec: SGLangEngineSpec, loop: asyncio.AbstractEventLoop) -> None:
        self.spec = spec
        self.policy_version = 0
        self.paused: PauseMode | None = None
        self.asleep: set[Tag] = set()
        self.updating = False
        self.fault = ""
        self.closed = False
        self.waiting = 0
        self._loop = loop
        self._config = spec.read_config()
        self._owner = secrets.token_hex(4)
        self._stale_kv: StaleKV = "never"
        self._kv: dict[str, int] = {}
        self._flights: dict[str, _Flight] = {}
        self._weights: Mapping[str, WeightArray] | None = None
        self._clock = EngineClock()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self.fleet = ServerFleet(
            spec,
            start=self._start_server,
            generates=lambda: self.paused is None and not self.updating,
            changed=self._notify,
        )

    # --- what any thread may call ---------------------------------------------------------------------------------

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Runs a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @property
    def vocab_size(self) -> int:
        """Ids of the model; one beyond would end the server."""
        return int(self._config["vocab_size"])

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return int(self._config.get("num_key_value_heads") or self._config["num_attention_heads"])

    @property
    def ties_embeddings(self) -> bool:
        """Whether the head is the embedding."""
        return bool(self._config.get("tie_word_embeddings", False))

    @property
    def running(self) -> int:
        """Requests that a server has."""
        return sum(server.running for server in self.fleet.servers)

    @property
    def kv_tokens(self) -> int:
        """KV positions that the sessions had after their last call, as far as this side knows."""
        return sum(self._kv.values())

    @property
    def flushes_updates(self) -> bool:
        """Whether an update empties the KV caches."""
        return self.paused != "in_place"

    def info(self) -> EngineInfo:
        """What a client must know."""
        spec = self.spec
        return EngineInfo("sglang", spec.model_path, self.vocab_size, spec.context_tokens, self.policy_version)

    def label(self, version: int) -> str:
        """What servers call a policy version: another owner's numbers are never taken for ours."""
        return f"{self._owner}.{version}"

    def weights_folder(self, version: int) -> Path:
        """Where weights of a version may be written."""
        return Path(self.spec.folder) / "weights" / f"version-{version:06d}"

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Brings every server up."""
        await self.fleet.start()

    async def close(self) -> None:
        """Ends everything; requests in flight fail."""
        self.closed = True
        await self._notify()
        for task in list(self._tasks):
            task.cancel()
        await self.fleet.close()

    # --- requests -------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        check_request(request, self.info(), stop_strings=self.spec.stop_strings)
        if request.request_id in self._flights:
            raise EngineError(f"request_id {request.request_id!r} is already in flight; ids must be unique")
        flight = self._flights[request.request_id] = _Flight(request)
        try:
            return await self._clock.limit(
                self._attempts(flight), request.deadline_s, f"request {request.request_id!r}"
            )
        finally:
            del self._flights[request.request_id]

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``; what was generated so far comes back with the answer."""
        for request_id in request_ids:
            flight = self._flights.get(request_id)
            if flight is not None and flight.server is not None:
                await flight.server.client.abort(flight.rid)

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``. The server's cache forgets by itself: least recently used first."""
        self.fleet.router.forget(session_id)
        self._kv.pop(session_id, None)

    async def _attempts(self, flight: _Flight) -> Completion:
        request = flight.request
        failed: list[Server] = []
        for attempt in range(_ATTEMPTS):
            server = await self._server_for(request, failed)
            flight.server, flight.rid = server, f"{request.request_id}#{self._owner}.{attempt}"
            try:
                return await self._attempt(flight, server)
            except ServerLostError as error:
                failed.append(server)
                last = error
                await self.fleet.examine(server, str(error))
        raise EngineError(
            f"request {request.request_id!r} failed {_ATTEMPTS} times, on {', '.join(s.name for s in failed)}; "
            f"the last time: {last}"
        ) from last

    async def _attempt(self, flight: _Flight, server: Server) -> Completion:
        request, stale_before = flight.request, self._stale_kv
        call = asyncio.ensure_future(server.client.generate(generate_body(request, flight.rid)))
        server.calls.add(call)
        server.running += 1
        self._idle.clear()
        try:
            answer = await call
        except asyncio.CancelledError:
            if call.cancelled() and not server.serving and not _cancelling():
                raise ServerLostError(f"{server.name} was lost while it had request {request.request_id!r}") from None
            call.cancel()
            self._in_background(self._forget_request(server, flight.rid))
            raise
        finally:
            server.calls.discard(call)
            server.running -= 1
            flight.server = None
            if not self.running:
                self._idle.set()
        completion = read_answer(
            request,
            answer,
            server=server.name,
            vocab_size=self.vocab_size,
            version_of=self._version_of,
            stale_kv="never" if stale_before == self._stale_kv == "never" else "always",
        )
        self._kv[request.session_id] = completion.account.prompt_tokens + completion.account.completion_tokens
        return completion

    async def _server_for(self, request: GenerateRequest, failed: Sequence[Server]) -> Server:
        """Waits until the engine serves; then for ``unavailable_s`` at most until a server does."""
        since: float | None = None
        self.waiting += 1
        try:
            while True:
                if self.closed or self.fault:
                    raise EngineError(self.fault or "the engine was closed; build it again", retryable=not self.fault)
                if self.paused is None:
                    if request.min_version > self.policy_version:
                        raise EngineError(
                            f"request {request.request_id!r} needs min_version={request.min_version}, the engine "
                            f"serves policy_version={self.policy_version}; send it to an engine that was updated"
                        )
                    if (server := self.fleet.router.choose(request.session_id, failed)) is not None:
                        return server
                    self.fleet.require_hope()
                    since = self._clock.now() if since is None else since
                    if self._clock.now() - since > self.spec.unavailable_s:
                        raise EngineError(
                            f"no server came back within {self.spec.unavailable_s:g} s; {self.fleet.describe()}"
                        )
                await self._wait_changed(timeout_s=1.0)
        finally:
            self.waiting -= 1

    async def _forget_request(self, server: Server, rid: str) -> None:
        try:
            await server.client.abort(rid)
        except EngineError as error:
            await self.fleet.examine(server, str(error))

    def _version_of(self, label: str) -> int:
        owner, _, version = label.partition(".")
        if owner != self._owner or not version.isdecimal():
            raise EngineError(
                f"an answer was made by weights called {label!r}, which this engine did not send; "
                "a server must have one owner",
                retryable=False,
            )
        return int(version)

    # --- control --------------------------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode) -> None:
        """See ``EngineControl.pause``."""
        self._require_whole("pause")
        self._clock.stop()
        self.paused = mode
        members = self.fleet.serving
        spanless = not all(server.client.dialect.reports_spans for server in members)
        if mode == "drain" or (spanless and mode == "retract"):
            await self._drained()
        server_mode: Literal["retract", "in_place"] = "in_place" if mode == "in_place" else "retract"
        await self.on_members(members, lambda client, _: client.pause(server_mode), may_lose_all=True)

    async def resume(self) -> None:
        """See ``EngineControl.resume``."""
        self._require_whole("resume")
        if self.updating or self.asleep:
            mend = "commit the update" if self.updating else f"call wake({sorted(self.asleep)})"
            raise EngineError(f"resume: the engine is {'updating' if self.updating else 'asleep'}; {mend} first")
        await self.on_members(self.fleet.serving, lambda client, _: client.resume(), may_lose_all=True)
        self.paused = None
        self._clock.go()
        await self._notify()

    async def sleep(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.sleep``."""
        self._require_whole("sleep")
        running = 0 if self.paused in ("retract", "drain") else self.running
        await self.on_members(self.fleet.serving, lambda client, _: client.release(tags, running=running))
        self.asleep |= set(tags)
        if self.paused is None:
            self.paused = "drain"
            self._clock.stop()

    async def wake(self, tags: Sequence[Tag]) -> None:
        """See ``EngineControl.wake``."""
        self._require_whole("wake")
        await self.on_members(self.fleet.serving, lambda client, _: client.regain(tags))
        self.asleep -= set(tags)

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
        live = [(place, server) for place, server in enumerate(members) if self.fleet.takes_part(server)]
        results = await asyncio.gather(
            *(self._on_member(server, call, place) for place, server in live), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not may_lose_all:
            self.fleet.require_hope()

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
        self.fleet.require_hope()

    # --- updates --------------------------------------------------------------------------------------------------

    async def begin_update(self, version: int) -> None:
        """Opens an update; servers that are starting come up first."""
        self._require_whole("begin_update")
        if self.paused is None or self.updating:
            what = "another update is open" if self.updating else "it is serving"
            raise EngineError(
                f"begin_update({version}) needs a paused engine, but {what}; call pause('retract') first",
                retryable=False,
            )
        await self.fleet.settle()
        await self.fleet.find_returning()
        self.fleet.require_hope()
        self.updating = True

    def update_members(self) -> tuple[Server, ...]:
        """The servers that an update reaches."""
        return self.fleet.reachable

    async def updated(self, version: int, weights: Mapping[str, WeightArray]) -> None:
        """The servers have new weights; those that were lost are started with them."""
        self.policy_version, self._weights = version, weights
        self._stale_kv = "never" if self.flushes_updates else "always"
        self._kv.clear()
        self.updating = False
        self.fleet.updated()
        await self.fleet.any_serving()
        await self._notify()

    async def update_cancelled(self) -> None:
        """No tensor was sent."""
        self.updating = False

    async def torn(self, problem: str) -> None:
        """The servers hold parts of two versions: nothing is served any more."""
        self.updating = False
        self.fault = f"the engine's weights are torn ({problem}); build it again, or use another"
        await self._notify()

    async def verify(self) -> None:
        """Every server holds what it was sent."""
        if self._weights is None:
            raise EngineError(
                "checksum: no weights were sent yet, so that there is nothing to compare with; publish first",
                retryable=False,
            )
        for server in self.fleet.serving:
            await server.verify(self._weights, self.num_kv_heads)

    @property
    def weights(self) -> Mapping[str, WeightArray]:
        """What was sent last."""
        return self._weights or {}

    # --- inside ---------------------------------------------------------------------------------------------------

    async def _start_server(self, server: Server) -> None:
        """Starts a server with the weights served now."""
        while self.updating:
            await self._wait_changed(timeout_s=0.2)
        if self.fault:
            raise EngineError(self.fault, retryable=False)
        weights, version, model = self._weights, self.policy_version, Path(self.spec.model_path)
        if weights is not None and not server.given:
            folder = self.weights_folder(version)
            if not folder.exists():
                await asyncio.to_thread(write_weights, folder, model, weights.values())
            model = folder
        await server.start(model, self.label(version))
        if weights is not None:
            await server.verify(weights, self.num_kv_heads)
        if self.policy_version != version:
            raise ServerLostError(f"{server.name} came up with version {version} after {self.policy_version} was sent")

    async def _drained(self) -> None:
        """Waits until no server has a request."""
        try:
            async with asyncio.timeout(self.spec.update_timeout_s):
                while self.running:
                    await self._idle.wait()
        except TimeoutError:
            raise EngineError(
                f"pause('drain'): {self.running} requests still run after {self.spec.update_timeout_s:g} s; "
                "use pause('retract'), or shorter completions",
                retryable=False,
            ) from None

    def _require_whole(self, what: str) -> None:
        if self.closed or self.fault:
            raise EngineError(f"{what}: {self.fault or 'the engine was closed'}", retryable=False)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait_changed(self, *, timeout_s: float) -> None:
        """Until something changed, or so long."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
