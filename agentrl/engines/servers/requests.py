"""Requests in flight: each finds a server, and another one where that fails it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl.engines.checks import check_request, require_new
from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.servers.pool import ServerPool
from agentrl.engines.servers.server import Server
from agentrl.engines.servers.state import ServersState
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest, TokenUsage
from agentrl.types.clock import PausableTimeout, clock_paused, counted_by

Ids: TypeAlias = npt.NDArray[np.int32]
Logprobs: TypeAlias = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)

_ATTEMPTS = 4
"""Servers that a request is tried on; each failure is looked into first."""


@dataclass(slots=True)
class _Flight:
    """A request in flight: the server that has it, its name there, and the tokens told so far."""

    request: GenerateRequest
    server: Server | None = None
    rid: str = ""
    aborted: bool = False
    told: int = 0

    def tell(
        self, listener: Callable[[Ids, Logprobs], None], ids: Ids, logprobs: Logprobs
    ) -> None:
        """Counts the tokens that the request's listener is told."""
        self.told += ids.size
        listener(ids, logprobs)


class Requests:
    """Used from the engine's loop alone.

    Args:
        state: the engine's.
        pool: its servers.
    """

    def __init__(self, state: ServersState, pool: ServerPool) -> None:
        self.waiting = 0
        self._state = state
        self._pool = pool
        self._flights: dict[str, _Flight] = {}
        # what is aborted is never a later request of the same name
        self._numbers = itertools.count()
        self._idle = asyncio.Event()

    @property
    def running(self) -> int:
        """Requests that a server has."""
        return sum(server.running for server in self._pool.servers)

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        check_request(
            request,
            self._state.info(),
            stop_strings=self._state.kind.place.stop_strings,
            images=self._state.kind.sizes.sees_images,
        )
        require_new(request, self._flights)
        flight = _Flight(request)
        if request.on_tokens is not None:
            flight.request = replace(
                request, on_tokens=partial(flight.tell, request.on_tokens)
            )
        self._flights[request.request_id] = flight
        timeout = PausableTimeout(request.deadline_s, self._state.life.clock)
        try:
            async with timeout:
                with counted_by(timeout):
                    return await self._attempts(flight)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise EngineError(
                f"request {request.request_id!r} spent its deadline_s={request.deadline_s:g}; "
                "raise it, or look why it is slow"
            ) from None
        finally:
            del self._flights[request.request_id]

    async def abort(self, request_ids: Sequence[str]) -> None:
        """See ``RolloutEngine.abort``; what was generated so far comes back with the answer."""
        flights = [self._flights[one] for one in request_ids if one in self._flights]
        for flight in flights:
            flight.aborted = True
        # those that wait for a server
        await self._state.notify()
        await asyncio.gather(
            *(self._forget(one.server, one.rid) for one in flights if one.server)
        )

    async def release(self, session_id: str) -> None:
        """See ``RolloutEngine.release``. The server's cache forgets by itself: least recently used
        first.
        """
        self._pool.router.forget(session_id)
        self._state.kv.pop(session_id, None)

    async def _attempts(self, flight: _Flight) -> Completion:
        request = flight.request
        failed: list[Server] = []
        for _ in range(_ATTEMPTS):
            server = await self._server_for(flight, failed)
            if server is None:
                usage = TokenUsage(request.token_ids.size, 0)
                return Completion(request.request_id, (), "abort", usage)
            flight.server = server
            flight.rid = (
                f"{request.request_id}#{self._state.labels.owner}.{next(self._numbers)}"
            )
            try:
                return await self._attempt(flight, server)
            except ServerLostError as error:
                failed.append(server)
                last = error
                await self._pool.check_health(server, str(error))
                if flight.told:
                    raise EngineError(
                        f"{error}; {flight.told} of its tokens were told already, so no other "
                        "server may start again"
                    ) from error
                logger.warning(
                    "request %r is tried again (attempt %d of %d failed): %s",
                    request.request_id,
                    len(failed),
                    _ATTEMPTS,
                    error,
                    extra={
                        "event": "call_retried",
                        "server": server.name,
                        "request": request.request_id,
                        "attempt": len(failed),
                    },
                )
        raise EngineError(
            f"request {request.request_id!r} failed {_ATTEMPTS} times, on "
            f"{', '.join(s.name for s in failed)}; the last time: {last}"
        ) from last

    async def _attempt(self, flight: _Flight, server: Server) -> Completion:
        request = flight.request
        stale_before = self._state.stale_kv
        call = asyncio.ensure_future(server.client.generate(request, flight.rid))
        server.calls.add(call)
        self._idle.clear()
        try:
            completion = await call
        except asyncio.CancelledError:
            # ``Server.lose`` cancels the call, and a caller this task: only the first goes on.
            if call.cancelled() and not server.serving and not _cancelling():
                raise ServerLostError(
                    f"{server.name} was lost while it had request {request.request_id!r}"
                ) from None
            call.cancel()
            # In the background, since who cancels does not wait for a server.
            self._state.in_background(self._forget(server, flight.rid))
            raise
        finally:
            server.calls.discard(call)
            flight.server = None
            if not self.running:
                self._idle.set()
        # Before and after: an update in place may come while the request runs.
        if stale_before != "never" or self._state.stale_kv != "never":
            completion = replace(completion, stale_kv="always")
        usage = completion.usage
        self._state.kv[request.session_id] = usage.prompt_tokens + usage.completion_tokens
        return completion

    async def _server_for(self, flight: _Flight, failed: Sequence[Server]) -> Server | None:
        """Waits until the engine serves, and a server does. None where the request was aborted
        meanwhile."""
        request = flight.request
        self.waiting += 1
        try:
            while not flight.aborted:
                life = self._state.life
                if life.closed or life.fault:
                    raise EngineError(str(life.error()), retryable=not life.fault)
                if life.paused is None:
                    life.require_version(request)
                    if (
                        server := self._pool.router.choose(request.session_id, failed)
                    ) is not None:
                        return server
                    self._pool.require_any_live()
                # Not every change is notified. A start has limits of its own, after which no server
                # is live; none of it is the policy's time.
                with clock_paused():
                    await self._state.wait_changed(timeout_s=1.0)
            return None
        finally:
            self.waiting -= 1

    async def _forget(self, server: Server, rid: str) -> None:
        try:
            await server.client.abort(rid)
        except EngineError as error:
            await self._pool.check_health(server, str(error))

    async def drained(self) -> None:
        """Waits until no server has a request.

        Raises:
            EngineError: one still has after ``update_timeout_s``.
        """
        seconds = self._state.kind.spec.update_timeout_s
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


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
