"""Server pool: all servers of an engine, brought up together, watched, restarted when they die."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from agentrl.engines.base import EngineNotice
from agentrl.engines.servers.router import Router
from agentrl.engines.servers.server import Server
from agentrl.engines.servers.state import ServersState
from agentrl.errors import EngineError

Start: TypeAlias = Callable[[Server], Coroutine[Any, Any, None]]

logger = logging.getLogger(__name__)

_EXIT_POLL_S = 0.5
_MISSES = 2
"""Looks that a server fails in a row before it counts as lost; its process's end needs but one."""


class ServerPool:
    """Used from one event loop.

    Args:
        state: of the engine whose servers they are.
        start: brings one server up, and gives it the weights served now.

    Attributes:
        engine: names the engine in the log, where several processes have some.
        notices: from the engine's loop to its owner's thread; both ends of a deque may be used at
            once.
    """

    def __init__(self, state: ServersState, start: Start) -> None:
        kind = state.kind
        urls = kind.spec.urls or (None,) * kind.spec.num_servers
        self.servers = tuple(
            Server(index, kind, state.labels, url) for index, url in enumerate(urls)
        )
        self.router = Router(self.servers)
        self.engine = Path(kind.place.folder).name
        self.notices: deque[EngineNotice] = deque()
        self._state = state
        self._start = start
        self._last_problem = ""

    @property
    def serving(self) -> tuple[Server, ...]:
        """Those in the rotation."""
        return tuple(server for server in self.servers if server.serving)

    @property
    def reachable(self) -> tuple[Server, ...]:
        """Those that an update can reach: in the rotation, or those that it takes along."""
        return tuple(server for server in self.servers if server.reachable)

    async def start(self) -> None:
        """Brings all up at once; where one fails the others' starts are cancelled.

        Raises:
            AgentRLError: the first failure.
        """
        try:
            async with asyncio.TaskGroup() as starts:
                for server in self.servers:
                    starts.create_task(self._start(server))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for server in self.servers:
            server.state = "serving"
            self._log(server, "server_started", f"{server.name} serves")
            self._state.in_background(self._watch(server))

    async def close(self) -> None:
        """Ends the servers started here."""
        # Watches and restarts end first: they would bring back what ends here.
        for task in list(self._state.tasks):
            task.cancel()
        for server in self.servers:
            server.state = "gone"
            server.lose()
        await asyncio.gather(*(server.end() for server in self.servers))

    async def check_health(self, server: Server, why: str) -> None:
        """After a failure: a server that does not answer is lost, one that does goes on."""
        # It is looked at again: it may have been lost, or the engine closed, while it was asked.
        if server.serving and not await server.healthy() and server.serving:
            self.lose(server, why)

    def lose(self, server: Server, why: str) -> None:
        """Takes a server out of the rotation; one that was started here is started again."""
        if server.state == "returning":
            server.state = "lost"
        if not server.serving:
            return
        server.lose()
        self._last_problem = f"{server.name} was lost: {why}"
        most = self._state.kind.spec.max_restarts
        if server.given:
            remedy = "it comes back with the next update once it answers again"
        elif server.restarts < most:
            waiting = "" if self.serving else ", requests wait for it"
            count = f"restart {server.restarts + 1} of at most {most}"
            remedy = f"it is started again{waiting} ({count})"
        else:
            remedy = "no restart is left"
        self._tell(server, "server_lost", f"{self._last_problem}; {remedy}", lost=1)
        if not server.given:
            # From here on, not from the task's first step: the request that found it lost looks for
            # another server before that.
            server.state = "starting"
            self._state.in_background(self._restart(server))

    async def find_returning(self) -> None:
        """Looks for given servers that answer again: the next update brings them back. Where it has
        no other, they have ``startup_timeout_s`` for that."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._state.kind.spec.startup_timeout_s
        while away := [
            server for server in self.servers if server.given and not server.serving
        ]:
            answers = await asyncio.gather(*(server.healthy() for server in away))
            for server, healthy in zip(away, answers, strict=True):
                server.state = "returning" if healthy else "lost"
            if self.reachable or loop.time() > deadline:
                return
            await asyncio.sleep(_EXIT_POLL_S)

    def updated(self) -> None:
        """Given servers that took part in an update serve again."""
        for server in self.servers:
            # One that was started here goes on to be compared with the others.
            if server.given and server.state == "returning":
                server.state = "serving"
                self._log(
                    server, "server_returned", f"{server.name} answers again, and serves"
                )

    async def settle(self) -> None:
        """Waits until no server is starting or joining; while the engine sleeps none starts."""
        while any(
            server.state == "joining"
            or (server.state == "starting" and not self._state.life.asleep)
            for server in self.servers
        ):
            await self._state.wait_changed(timeout_s=_EXIT_POLL_S)

    async def any_serving(self) -> None:
        """Waits until a server serves.

        Raises:
            EngineError: none will.
        """
        while not self.serving:
            await self.any_reachable()
            await self._state.wait_changed(timeout_s=_EXIT_POLL_S)

    async def any_reachable(self) -> None:
        """Waits until an update can reach a server.

        Raises:
            EngineError: it never will.
        """
        while not self.reachable:
            self.require_any_live()
            await self._state.wait_changed(timeout_s=_EXIT_POLL_S)

    def require_any_live(self) -> None:
        """Raises an EngineError where no server serves, takes part in the update that is open, or
        will serve before the next one."""
        if all(server.state in ("lost", "gone") for server in self.servers):
            gone = all(server.state == "gone" for server in self.servers)
            raise EngineError(f"no server is left: {self.describe()}", retryable=not gone)

    def describe(self) -> str:
        """The servers' states, and what went wrong last."""
        states = ", ".join(f"{server.name} is {server.state}" for server in self.servers)
        return states + (
            f"; last problem: {self._last_problem}" if self._last_problem else ""
        )

    async def _watch(self, server: Server) -> None:
        """Looks at a server as long as the engine lives; while servers are paused, their health
        cannot be asked for."""
        loop = asyncio.get_running_loop()
        state = self._state
        last_look = loop.time()
        misses = 0
        while server.state != "gone":
            await asyncio.sleep(_EXIT_POLL_S)
            if not server.serving:
                misses = 0
            elif server.exited:
                self.lose(server, "its process ended")
            elif (
                state.generates
                and loop.time() - last_look > state.kind.spec.health_interval_s
            ):
                healthy = await server.healthy()
                last_look = loop.time()
                # A pause that began during the look is no miss: no server answers in one.
                misses = 0 if healthy or not state.generates else misses + 1
                if misses >= _MISSES:
                    self.lose(server, "it did not answer /health")

    async def _restart(self, server: Server) -> None:
        """Starts a lost server again, a bounded number of times."""
        most = self._state.kind.spec.max_restarts
        lost = time.monotonic()
        while server.restarts < most:
            server.restarts += 1
            server.state = "starting"
            try:
                await self._start(server)
            except Exception as error:  # noqa: BLE001 - boundary: whatever it is, it has an end
                start = f"{server.name}, start {server.restarts + 1}"
                self._last_problem = f"{start}: {type(error).__name__}: {error}"
                self._tell(server, "server_start_failed", self._last_problem)
                continue
            server.state = "serving"
            away_s = time.monotonic() - lost
            text = f"{server.name} serves again after {away_s:.0f} s"
            self._tell(server, "server_restarted", text, logging.INFO, away_s=away_s)
            break
        else:
            text = f"{server.name} is given up after {most} restarts; {self.describe()}"
            self._tell(server, "server_gone", text)
            server.state = "gone"
            await server.end()
        await self._state.notify()

    def _tell(
        self,
        server: Server,
        event: str,
        text: str,
        level: int = logging.WARNING,
        *,
        lost: int = 0,
        away_s: float = 0.0,
    ) -> None:
        """One event for the log, ``events.jsonl`` and the metrics."""
        counts = {"count/lost_servers": float(lost), "time/server_away_s": away_s}
        message = self._log(server, event, text, level, away_s=away_s)
        self.notices.append(
            EngineNotice(
                event, message, {name: value for name, value in counts.items() if value}
            )
        )

    def _log(
        self,
        server: Server,
        event: str,
        text: str,
        level: int = logging.INFO,
        **fields: float,
    ) -> str:
        """An event for the log alone, of which no person need hear; its message."""
        message = f"{text} [{self.engine}]"
        own = {"event": event, "server": server.name, "engine": self.engine}
        logger.log(level, message, extra={**own, **fields})
        return message
