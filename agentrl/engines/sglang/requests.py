"""Requests in flight: each finds a server, and another one where that fails it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.engines.checks import check_request
from agentrl.engines.sglang.errors import ServerLostError
from agentrl.engines.sglang.pool import ServerFleet
from agentrl.engines.sglang.server import Server
from agentrl.engines.sglang.state import EngineState
from agentrl.engines.sglang.stream import Growing
from agentrl.engines.sglang.versions import KNOWN
from agentrl.engines.sglang.wire import generate_body, read_answer
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest, TokenUsage

__all__ = ["Requests"]

_ATTEMPTS = 4
"""Servers that a request is tried on; each failure is looked into first."""


@dataclass(slots=True)
class _Flight:
    """A request in flight: the server that has it and what it is called there."""

    request: GenerateRequest
    server: Server | None = None
    rid: str = ""
    aborted: bool = False
    growing: Growing | None = None


class Requests:
    """Used from the engine's loop alone.

    Args:
        state: the engine's.
        fleet: its servers.
    """

    def __init__(self, state: EngineState, fleet: ServerFleet) -> None:
        self.waiting = 0
        self._state, self._fleet = state, fleet
        self._flights: dict[str, _Flight] = {}
        self._numbers = (
            itertools.count()
        )  # what is aborted is never a later request of the same name
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Requests that a server has."""
        return sum(server.running for server in self._fleet.servers)

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        check_request(
            request,
            self._state.info(),
            stop_strings=self._state.spec.stop_strings,
            images=self._state.sees_images,
        )
        if request.request_id in self._flights:
            raise EngineError(
                f"request_id {request.request_id!r} is already in flight; ids must be unique"
            )
        growing = None if request.on_tokens is None else Growing(request)
        flight = self._flights[request.request_id] = _Flight(request, growing=growing)
        try:
            return await self._state.clock.limit(
                self._attempts(flight), request.deadline_s, f"request {request.request_id!r}"
            )
        finally:
            del self._flights[request.request_id]

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``; what was generated so far comes back with the answer."""
        flights = [
            self._flights[request_id] for request_id in request_ids if request_id in self._flights
        ]
        for flight in flights:
            flight.aborted = True
        await self._state.notify()  # those that wait for a server
        await asyncio.gather(
            *(
                self._forget(flight.server, flight.rid)
                for flight in flights
                if flight.server is not None
            )
        )

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``. The server's cache forgets by itself: least recently used first."""
        self._fleet.router.forget(session_id)
        self._state.kv.pop(session_id, None)

    async def _attempts(self, flight: _Flight) -> Completion:
        request = flight.request
        failed: list[Server] = []
        for _ in range(_ATTEMPTS):
            server = await self._server_for(flight, failed)
            if server is None:
                account = TokenUsage(int(request.token_ids.size), 0)
                return Completion(request.request_id, (), "abort", account)
            flight.server, flight.rid = (
                server,
                f"{request.request_id}#{self._state.owner}.{next(self._numbers)}",
            )
            try:
                return await self._attempt(flight, server)
            except ServerLostError as error:
                failed.append(server)
                last = error
                await self._fleet.examine(server, str(error))
                if flight.growing is not None and flight.growing.told:
                    raise EngineError(
                        f"{error}; {flight.growing.told} of its tokens were told already, so no server may begin anew"
                    ) from error
        raise EngineError(
            f"request {request.request_id!r} failed {_ATTEMPTS} times, on {', '.join(s.name for s in failed)}; "
            f"the last time: {last}"
        ) from last

    async def _attempt(self, flight: _Flight, server: Server) -> Completion:
        request, stale_before = flight.request, self._state.stale_kv
        if request.media and not server.client.dialect.keeps_ids_beside_images:
            raise EngineError(
                f"request {request.request_id!r} has images, and {server.name} is SGLang "
                f"{server.client.dialect.version}, which encodes the tokens around them anew; use "
                f"{' or '.join(version for version, dialect in KNOWN.items() if dialect.keeps_ids_beside_images)}",
                retryable=False,
            )
        call = asyncio.ensure_future(
            server.client.generate(generate_body(request, flight.rid), flight.growing)
        )
        server.calls.add(call)
        server.running += 1
        self._idle.clear()
        try:
            answer = await call
        except asyncio.CancelledError:
            if call.cancelled() and not server.serving and not _cancelling():
                raise ServerLostError(
                    f"{server.name} was lost while it had request {request.request_id!r}"
                ) from None
            call.cancel()
            self._in_background(self._forget(server, flight.rid))
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
            vocab_size=self._state.vocab_size,
            version_of=self._state.version_of,
            stale_kv="never" if stale_before == self._state.stale_kv == "never" else "always",
        )
        self._state.kv[request.session_id] = (
            completion.account.prompt_tokens + completion.account.completion_tokens
        )
        return completion

    async def _server_for(self, flight: _Flight, failed: Sequence[Server]) -> Server | None:
        """Waits until the engine serves; then for ``unavailable_s`` at most until a server does. None where the
        request was aborted meanwhile."""
        request = flight.request
        since: float | None = None
        self.waiting += 1
        try:
            while not flight.aborted:
                if self._state.closed or self._state.fault:
                    raise EngineError(
                        self._state.fault or "the engine was closed; build it again",
                        retryable=not self._state.fault,
                    )
                if self._state.paused is None:
                    if request.min_version > self._state.policy_version:
                        raise EngineError(
                            f"request {request.request_id!r} needs min_version={request.min_version}, the engine "
                            f"serves policy_version={self._state.policy_version}; send it to an engine that was updated"
                        )
                    if (
                        server := self._fleet.router.choose(request.session_id, failed)
                    ) is not None:
                        return server
                    self._fleet.require_any_live()
                    since = self._state.clock.now() if since is None else since
                    if self._state.clock.now() - since > self._state.spec.unavailable_s:
                        raise EngineError(
                            f"no server came back within {self._state.spec.unavailable_s:g} s; {self._fleet.describe()}"
                        )
                await self._state.wait_changed(timeout_s=1.0)
            return None
        finally:
            self.waiting -= 1

    async def _forget(self, server: Server, rid: str) -> None:
        try:
            await server.client.abort(rid)
        except EngineError as error:
            await self._fleet.examine(server, str(error))

    async def drained(self) -> None:
        """Waits until no server has a request.

        Raises:
            EngineError: one still has after ``update_timeout_s``.
        """
        seconds = self._state.spec.update_timeout_s
        try:
            async with asyncio.timeout(seconds):
                while self.running:
                    await self._idle.wait()
        except TimeoutError:
            raise EngineError(
                f"pause('drain'): {self.running} requests still run after {seconds:g} s; "
                "use pause('retract'), or shorter completions",
                retryable=False,
            ) from None

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
