"""Server: one of a pool, how it comes up, whether it lives."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentrl.engines.servers.client import ServerClient, ServerKind, WeightLabels
from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.servers.process import ServerProcess
from agentrl.errors import EngineError, MachineError
from agentrl.metrics.memory import OUT_OF_MEMORY

ServerState: TypeAlias = Literal[
    "starting", "joining", "serving", "lost", "returning", "gone"
]
"""``joining``: it has started, and no update begins before it has the weights served now; ``lost``:
it does not answer, and may come back; ``returning``: it answers, and serves once it was taken along
by an update; ``gone``: it was given up."""

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_POLL_S = 0.5


class Server:
    """A server that is started here, or one that is given by its URL. Used from one event loop.

    Args:
        index: its place among the others.
        kind: how it is started, and what it must be.
        labels: of weights.
        url: of a given server.
    """

    def __init__(
        self, index: int, kind: ServerKind, labels: WeightLabels, url: str | None = None
    ) -> None:
        self.name = f"server {index}" + (f" ({url})" if url else "")
        self.state: ServerState = "starting"
        self.restarts = 0
        self.calls: set[asyncio.Task[Any]] = set()
        self._kind = kind
        self._labels = labels
        self._url = url
        self._log = Path(kind.place.folder) / f"server-{index}.log"
        self._index = index
        self._process: ServerProcess | None = None
        self._client: ServerClient | None = None

    @property
    def serving(self) -> bool:
        """Whether it may be sent requests."""
        return self.state == "serving"

    @property
    def running(self) -> int:
        """Requests that it has."""
        return len(self.calls)

    @property
    def reachable(self) -> bool:
        """Whether it can be called in an update."""
        return self.state in ("serving", "returning")

    @property
    def given(self) -> bool:
        """Whether it belongs to someone else."""
        return self._url is not None

    @property
    def client(self) -> ServerClient:
        """Its interface."""
        if self._client is None:
            raise EngineError(f"{self.name} was not started", retryable=False)
        return self._client

    @property
    def exited(self) -> bool:
        """Whether the process started here has ended."""
        return self._process is not None and self._process.exit_code is not None

    async def start(self, model: Path, label: str) -> None:
        """Starts it, or finds the given one, and waits until it generates; the caller lets it
        serve.

        Args:
            model: folder of the weights that a server started here begins with.
            label: of those weights.

        Raises:
            MachineError: it did not come up in time, ended, or its version is too old.
            EngineError: it serves another model, or a shorter context.
        """
        await self.end()
        with reserved_port() as port:
            self._client = self._kind.client(
                self.name, self._url or server_url(port), self._labels
            )
            if not self.given:
                command = self._kind.command(model=model, port=port)
                self._process = ServerProcess(
                    command, self._kind.environment(self._index), self._log
                )
            await self._ready()
        await self.client.probe()
        await self.client.check_model()
        await self.client.label(label)

    async def healthy(self) -> bool:
        """Whether it answers; not where it cannot be asked."""
        try:
            return not self.exited and await self.client.healthy(self._kind.health_s)
        except Exception as error:  # noqa: BLE001 - boundary: who watches it goes on
            logger.warning(
                "%s cannot be asked: %s: %s", self.name, type(error).__name__, error
            )
            return False

    def lose(self) -> None:
        """It answers no more: calls in flight end, and their requests go elsewhere."""
        if self.state != "gone":
            self.state = "lost"
        for call in self.calls:
            call.cancel()

    async def end(self) -> None:
        """Ends what was started here; a given server goes on."""
        process = self._process
        self._process = None
        client = self._client
        self._client = None
        if process is not None:
            await asyncio.to_thread(process.end)
        if client is not None:
            await client.close()

    async def _ready(self) -> None:
        """Waits until it came up."""
        loop = asyncio.get_running_loop()
        own = f"rollout.{self._kind.spec.section}"
        limit_s = self._kind.spec.startup_timeout_s
        deadline = loop.time() + limit_s
        # A server that is started here has no former owner.
        attached = not self.given
        problem = ""
        while loop.time() < deadline:
            if self._process is not None and self.exited:
                said = self._process.output()
                memory = f" out of memory (lower {own}.kv_memory_fraction, or raise {own}.tp_size)"
                raise MachineError(
                    f"{self.name} ended while it started{memory * bool(OUT_OF_MEMORY.search(said))}"
                    f"; the end of its log {self._log}:\n{self._process.log_tail()}"
                )
            try:
                if not attached:
                    # Before it is asked for what it may lack.
                    await self.client.probe()
                    problem = "it still ends requests of its former owner"
                    attached = await self.client.attach()
                if attached:
                    problem = "its /health did not answer 200"
                    left_s = max(deadline - loop.time(), _POLL_S)
                    if await self.client.healthy(min(self._kind.health_s, left_s)):
                        return
            except ServerLostError as error:
                problem = str(error)
            await asyncio.sleep(_POLL_S)
        log = "" if self.given else f"; its log is {self._log}"
        raise MachineError(
            f"{self.name} did not answer within {own}.startup_timeout_s={limit_s:g} ({problem}"
            f"{log}); raise it, or look why it does not start"
        )


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine for a server that takes a minute to listen there: while it is held,
    the system gives it to nobody who asks for any port, whether to listen or to connect.
    """
    with socket.socket() as held:
        # which lets the server, whose socket says the same, bind and listen beside this one
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        yield int(held.getsockname()[1])


def server_url(port: int) -> str:
    """Where a server started here is reached."""
    return f"http://{HOST}:{port}"
