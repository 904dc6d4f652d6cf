"""Policy server: the HTTP endpoint in the event loop that hosts the episodes, and their driver.

- It starts with the host's first episode and is closed with its host.
- It leaves signals to the owner of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.registry import EpisodeRegistry
from agentrl.engines.base import RolloutEngine
from agentrl.envs import Env
from agentrl.errors import EnvError, MachineError
from agentrl.guards.addresses import in_url
from agentrl.guards.http_guard import own_hosts
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Status
from agentrl.types.machine import listening_socket

if TYPE_CHECKING:
    import uvicorn


_CLOSE_S = 10.0


class PolicyServer(EpisodeRegistry):
    """The endpoint of a host whose episodes are played by agent programs.

    Args:
        engine: the engine behind the endpoint.
        host, port: the address; port 0 takes a free one.
        token, hosts: see ``EpisodeRegistry``.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        hosts: Sequence[str] = (),
    ) -> None:
        super().__init__(engine, token=token, hosts=(*own_hosts(host), *hosts))
        self._address = (host, port)
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        # Held while the server starts: all episodes of the host call ``start`` concurrently.
        self._starting = asyncio.Lock()
        self._url = ""

    async def start(self) -> str:
        """Starts to listen at the first call.

        Returns:
            The URL of the endpoint's root.

        Raises:
            MachineError: the address cannot be listened on.
        """
        async with self._starting:
            if self._serving is None:
                listening = listening_socket(*self._address, "the policy's endpoint")
                port = listening.getsockname()[1]
                self._url = f"http://{in_url(self._address[0])}:{port}"
                self._server = _quiet_server(self)
                self._serving = asyncio.create_task(self._server.serve([listening]))
                while not self._server.started:
                    if self._serving.done():
                        raise MachineError(
                            f"the policy's endpoint at {self._url} ended before it served anything"
                        )
                    await asyncio.sleep(0.005)
        return self._url

    async def serve(self, episode_id: str, episode: ServedEpisode) -> str:
        """Serves an episode.

        Returns:
            The URL of its own routes, to which an OpenAI client adds ``/v1``.
        """
        root = await self.start()
        self.episodes[episode_id] = episode
        return f"{root}/episodes/{episode_id}"

    async def close(self) -> None:
        """Ends the endpoint; requests in flight are cancelled after a grace period."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            done, _ = await asyncio.wait([self._serving], timeout=_CLOSE_S)
            if not done:
                self._server.force_exit = True
            await self._serving


def _quiet_server(registry: EpisodeRegistry) -> uvicorn.Server:
    """A server that installs no signal handlers and writes no log."""
    import uvicorn

    from agentrl.agent_server.app import make_app

    class QuietServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return QuietServer(
        uvicorn.Config(
            make_app(registry),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
    )


class ServedDriver:
    """Opens an episode on its host's endpoint and waits for its end.

    Args:
        turns: the episode's turn generator.
        server: the host's endpoint.
        idle_timeout_s: seconds without a request after which the episode ends.
        on_open: called with this driver after its episode has been opened.
        strict_keys, loose_history: see ``ServedEpisode``.

    Attributes:
        env: None, because the environment is outside of agentrl.
        episode: the episode, once it is opened.
    """

    env: Env | None = None
    episode: ServedEpisode

    def __init__(
        self,
        turns: TurnGenerator,
        server: PolicyServer,
        *,
        idle_timeout_s: float | None = None,
        on_open: Callable[[ServedDriver], None] | None = None,
        strict_keys: bool = False,
        loose_history: bool = False,
    ) -> None:
        key = turns.builder.key
        self.turns = turns
        # cannot be guessed: the id alone allows a client to act for the episode
        place = f"{key.group_index}-{key.rollout_index}-{key.attempt}"
        self.episode_id = f"{place}-{secrets.token_urlsafe(12)}"
        self.url = ""
        self._server = server
        self._idle_timeout_s = idle_timeout_s
        self._on_open = on_open
        self._reads = {"strict_keys": strict_keys, "loose_history": loose_history}

    async def prepare(self) -> None:
        """Opens the episode; ``url`` is that of its routes."""
        self.episode = ServedEpisode(
            self.turns, idle_timeout_s=self._idle_timeout_s, **self._reads
        )
        self.url = await self._server.serve(self.episode_id, self.episode)
        if self._on_open is not None:
            self._on_open(self)

    async def play(self) -> Status:
        """Waits for the end, after which no turn is generated; see ``EpisodeDriver.play``.

        Raises:
            EnvError: the agent ended the episode without a turn.
            RewardError: there is no reward, and no function that computes one.
        """
        try:
            status = await self._wait()
        finally:
            # also after a deadline: the rubric must see every turn
            await self.episode.close()
        if status.kind == "terminated" and not self.episode.num_turns:
            raise EnvError("the agent ended the episode without asking the policy anything")
        self.episode.record_rewards(status)
        return status

    async def close(self) -> None:
        """Removes the episode from the endpoint."""
        self._server.drop(self.episode_id)

    async def _wait(self) -> Status:
        """Waits until the episode ends."""
        return await self.episode.until_end()
