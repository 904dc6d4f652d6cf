"""The endpoint in the event loop that hosts the episodes: it starts with the first of them and ends with their host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from agentrl.agent_server.api.chat_request import ChatRequest, Refusal
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.engines.base import RolloutEngine
from agentrl.errors import MachineError
from agentrl.rollouts.turns import TurnResult
from agentrl.types import EngineInfo

if TYPE_CHECKING:
    import uvicorn

    from agentrl.agent_server.app import EpisodeRegistry

__all__ = ["HttpHost", "PolicyServer"]

_CLOSE_S = 10.0
_MOST_ENDED = 4096
"""Ended episodes whose end can be told; a client asks again within seconds."""


class HttpHost:
    """An application on a socket of its own, served by the running event loop.

    Args:
        desk: who keeps the episodes.
        host: the address to listen on.
        port: 0 takes a free one.
    """

    def __init__(self, desk: EpisodeRegistry, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._desk = desk
        self._address = (host, port)
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._url = ""

    async def start(self) -> str:
        """Listens; a second call does nothing.

        Returns:
            The URL of its root.

        Raises:
            MachineError: the address cannot be listened on.
        """
        async with self._starting:
            if self._serving is None:
                listening = self._listen()
                host = self._address[0]
                self._url = (
                    f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
                )
                self._server = _quiet_server(self._desk)
                self._serving = asyncio.create_task(self._server.serve([listening]))
                while not self._server.started:
                    if self._serving.done():
                        raise MachineError(
                            f"the policy's endpoint at {self._url} ended before it served anything"
                        )
                    await asyncio.sleep(0.005)
        return self._url

    async def close(self) -> None:
        """Answers no more; requests in flight are cut after a moment."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            done, _ = await asyncio.wait([self._serving], timeout=_CLOSE_S)
            if not done:
                self._server.force_exit = True
            await self._serving

    def _listen(self) -> socket.socket:
        host, port = self._address
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(1024)
        except OSError as error:
            raise MachineError(
                f"the policy's endpoint cannot listen on {host}:{port}: {error.strerror or error}; choose another port"
            ) from error
        listening.setblocking(False)
        return listening


def _quiet_server(desk: EpisodeRegistry) -> uvicorn.Server:
    """A server that leaves signals to whoever owns the process."""
    import uvicorn

    from agentrl.agent_server.app import make_app

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        make_app(desk),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    return Quiet(config)


class PolicyServer:
    """The endpoint of a host whose episodes are played by agent programs: an ``EpisodeRegistry``.

    Args:
        engine: behind the endpoint.
        host, port: the address; port 0 takes a free one.
    """

    def __init__(self, engine: RolloutEngine, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._engine = engine
        self._episodes: dict[str, ServedEpisode] = {}
        self._ended: dict[str, str] = {}  # the oldest first
        self._http = HttpHost(self, host=host, port=port)

    async def start(self) -> str:
        """Listens, where that was not begun yet; the URL of the endpoint's root.

        Raises:
            MachineError: the address cannot be listened on.
        """
        return await self._http.start()

    async def hold(self, episode_id: str, episode: ServedEpisode) -> str:
        """Serves an episode; the URL of its own routes, to which ``/v1`` is added for an OpenAI client."""
        root = await self.start()
        self._episodes[episode_id] = episode
        return f"{root}/episodes/{episode_id}"

    def drop(self, episode_id: str) -> None:
        """Serves an episode no more; how it ended is remembered."""
        episode = self._episodes.pop(episode_id, None)
        if episode is not None:
            self._ended[episode_id] = episode.how_ended()
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    async def close(self) -> None:
        """Ends the endpoint."""
        await self._http.close()

    def info(self) -> EngineInfo:
        """See ``EpisodeRegistry.info``."""
        return self._engine.info()

    @property
    def num_episodes(self) -> int:
        """See ``EpisodeRegistry.num_episodes``."""
        return len(self._episodes)

    def find(self, episode_id: str) -> ServedEpisode | None:
        """See ``EpisodeRegistry.find``."""
        return self._episodes.get(episode_id)

    def how_ended(self, episode_id: str) -> str | None:
        """See ``EpisodeRegistry.how_ended``."""
        return self._ended.get(episode_id)

    async def complete_alone(
        self, request: ChatRequest, gone: Callable[[], Awaitable[object]], telling: StreamWriter
    ) -> TurnResult:
        """See ``EpisodeRegistry.complete_alone``: a program has an episode."""
        raise Refusal(
            401,
            "no_such_episode",
            "this endpoint serves episodes; use OPENAI_BASE_URL and OPENAI_API_KEY",
        )

    async def open(self, body: Any, root: str) -> dict[str, Any]:
        """See ``EpisodeRegistry.open``: a program is given its episode."""
        raise Refusal(
            403, "not_here", "episodes are opened by the training run here, one for each program"
        )

    async def outcome(self, episode_id: str) -> dict[str, Any]:
        """See ``EpisodeRegistry.outcome``: it is scored after the program has ended."""
        return {"id": episode_id, "status": "ending"}
