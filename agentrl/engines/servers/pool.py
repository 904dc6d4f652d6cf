"""Server pool: all servers of an engine, brought up together, watched, restarted when they die."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from agentrl.engines.base import EngineNotice
from agentrl.engines.servers.client import ServerKind, WeightLabels
from agentrl.engines.servers.router import Router
from agentrl.engines.servers.server import Server
from agentrl.errors import AgentRLError, EngineError

logger = logging.getLogger(__name__)

_EXIT_POLL_S = 0.5
_MISSES = 2
"""Looks that a server fails in a row before it counts as lost; its process's end needs but one."""


class ServerPool:
    """Used from one event loop.

    Args:
        kind: which servers, and how often their health is checked.
        labels: of weights.
        start: brings one server up with the weights served now.
        generates: whether servers may generate now; while they are paused their health cannot be
            asked for.
        changed: told when a server came or went.
    """

    def __init__(
        self,
        kind: ServerKind,
        labels: WeightLabels,
        *,
        start: Callable[[Server], Awaitable[None]],
        generates: Callable[[], bool],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        urls = kind.spec.urls or (None,) * kind.spec.num_servers
        self.servers = tuple(Server(index, kind, labels, url) for index, url in enumerate(urls))
        self.router = Router(self.servers)
        self.problems: list[str] = []
        # from the engine's loop to its owner's thread; both ends of a deque may be used at once
        self._notices: deque[EngineNotice] = deque()
        # whose servers they are, where several processes have some
        self._engine = Path(kind.place.folder).name
        self._spec = kind.spec
        self._start = start
        self._generates = generates
        self._changed = changed
        self._returning: set[Server] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def serving(self) -> tuple[Server, ...]:
        """Those in the rotation."""
        return tuple(server for server in self.servers if server.serving)

    @property
    def reachable(self) -> tuple[Server, ...]:
        """Those that an update can reach: in the rotation, or given ones that answer again."""
        return tuple(server for server in self.servers if self.takes_part(server))

    def takes_part(self, server: Server) -> bool:
        """Whether a server can be called in an update."""
        return server.serving or server in self._returning

    async def start(self) -> None:
        """Brings all up at once; where one fails the others are ended.

        Raises:
            AgentRLError: the first failure.
        """
        starts = [asyncio.ensure_future(self._start(server)) for server in self.servers]
        await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
        failures = [start.exception() for start in starts if start.done()]
        for failure in filter(None, failures):
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            await self.close()
            raise failure
        for server in self.servers:
            server.state = "serving"
            self._log(server, "server_started", "serves")
        for server in self.servers:
            self._in_background(self._watch(server))

    async def close(self) -> None:
        """Ends the servers started here."""
        for task in list(self._tasks):
            task.cancel()
        for server in self.servers:
            server.state = "gone"
            server.lose()
        await asyncio.gather(*(server.end() for server in self.servers))

    async def check_health(self, server: Server, why: str) -> None:
        """After a failure: a server that does not answer is lost, one that does goes on."""
        if server.serving and not await server.healthy() and server.serving:
            self.lose(server, why)

    def lose(self, server: Server, why: str) -> None:
        """Takes a server out of the rotation; one that was started here is started again."""
        self._returning.discard(server)
        if not server.serving:
            return
        problem = f"{server.name} was lost: {why}"
        self.problems.append(problem)
        server.lose()
        if server.given:
            self._tell(
                server,
                "server_lost",
                f"{problem}; it comes back with the next update once it answers again",
                lost=1,
            )
        else:
            self._in_background(self._restart(server, problem))

    async def find_returning(self) -> None:
        """Looks for given servers that answer again: the next update brings them back."""
        away = [server for server in self.servers if server.given and server.state == "lost"]
        answers = await asyncio.gather(*(server.healthy() for server in away))
        self._returning = {
            server for server, answers_again in zip(away, answers, strict=True) if answers_again
        }

    def updated(self) -> None:
        """Given servers that took part in an update serve again."""
        for server in self._returning:
            server.state = "serving"
            self._log(server, "server_returned", "answers again, and serves")
        self._returning.clear()

    async def settle(self) -> None:
        """Waits until no server is starting."""
        while any(server.state == "starting" for server in self.servers):
            await asyncio.sleep(_EXIT_POLL_S)

    async def any_serving(self) -> None:
        """Waits until a server serves.

        Raises:
            EngineError: none will.
        """
        while not self.serving:
            self.require_any_live()
            await asyncio.sleep(_EXIT_POLL_S)

    def require_any_live(self) -> None:
        """Raises an EngineError where no server serves and none will before the next update."""
        if not any(server.state in ("serving", "starting") for server in self.servers):
            gone = all(server.state == "gone" for server in self.servers)
            raise EngineError(f"no server is left: {self.describe()}", retryable=not gone)

    def describe(self) -> str:
        """The servers' states, and what went wrong last."""
        states = ", ".join(f"{server.name} is {server.state}" for server in self.servers)
        return states + (f"; last problem: {self.problems[-1]}" if self.problems else "")

    async def _watch(self, server: Server) -> None:
        """Looks at a server as long as the engine lives."""
        loop = asyncio.get_running_loop()
        last_look = loop.time()
        misses = 0
        while server.state != "gone":
            await asyncio.sleep(_EXIT_POLL_S)
            if not server.serving:
                misses = 0
            elif server.exited:
                self.lose(server, "its process ended")
            elif self._generates() and loop.time() - last_look > self._spec.health_interval_s:
                healthy = await server.healthy()
                last_look = loop.time()
                misses = 0 if healthy or not self._generates() else misses + 1
                if misses >= _MISSES:
                    self.lose(server, "it did not answer /health")

    def take_notices(self) -> list[EngineNotice]:
        """What became of servers since the last call; from any thread."""
        taken = []
        while self._notices:
            taken.append(self._notices.popleft())
        return taken

    async def _restart(self, server: Server, problem: str) -> None:
        """Starts a lost server again, a bounded number of times."""
        most = self._spec.max_restarts
        lost = time.monotonic()
        waiting = "" if self.serving else ", requests wait for it"
        again = f"it is started again{waiting} (restart {server.restarts + 1} of at most {most})"
        self._tell(
            server,
            "server_lost",
            f"{problem}; {again if server.restarts < most else 'no restart is left'}",
            lost=1,
        )
        while server.restarts < most:
            server.restarts += 1
            server.state = "starting"
            try:
                await self._start(server)
            except (AgentRLError, OSError) as error:
                self.problems.append(f"{server.name}, start {server.restarts + 1}: {error}")
                self._tell(server, "server_start_failed", self.problems[-1])
                continue
            server.state = "serving"
            away_s = time.monotonic() - lost
            self._tell(
                server,
                "server_restarted",
                f"{server.name} serves again after {away_s:.0f} s",
                away_s=away_s,
                warns=False,
            )
            await self._changed()
            return
        self._tell(
            server,
            "server_gone",
            f"{server.name} is given up after {most} restarts; {self.describe()}",
        )
        server.state = "gone"
        await server.end()
        await self._changed()

    def _tell(
        self,
        server: Server,
        event: str,
        text: str,
        *,
        lost: int = 0,
        away_s: float = 0.0,
        warns: bool = True,
    ) -> None:
        """One event for the log, ``events.jsonl`` and the metrics."""
        given = {"count/lost_servers": float(lost), "time/server_away_s": away_s}
        counts = {name: value for name, value in given.items() if value}
        message = f"{text} [{self._engine}]"
        self._notices.append(EngineNotice(event, message, counts))
        fields = {"event": event, "server": server.name, "engine": self._engine, "away_s": away_s}
        logger.log(logging.WARNING if warns else logging.INFO, message, extra=fields)

    def _log(self, server: Server, event: str, text: str) -> None:
        """An event of which no person need hear."""
        fields = {"event": event, "server": server.name, "engine": self._engine}
        logger.info("%s %s [%s]", server.name, text, self._engine, extra=fields)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
