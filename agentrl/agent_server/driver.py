"""Served driver: plays an episode whose turns are requested over the endpoint."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.server import PolicyServer
from agentrl.envs import Env
from agentrl.errors import EnvError
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Status


class ServedDriver:
    """Opens an episode on its host's endpoint and waits for its end.

    Args:
        turns: the episode's turn generator.
        server: the host's endpoint.
        idle_timeout_s: seconds without a request after which the episode ends.
        on_open: called with this driver after its episode has been opened.

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
    ) -> None:
        key = turns.builder.key
        self.turns = turns
        # cannot be guessed: the id alone allows a client to act for the episode
        self.episode_id = (
            f"{key.group_index}-{key.rollout_index}-{key.attempt}-{secrets.token_urlsafe(12)}"
        )
        self.url = ""
        self._server = server
        self._idle_timeout_s = idle_timeout_s
        self._on_open = on_open

    async def prepare(self) -> None:
        """Opens the episode; ``url`` is that of its routes."""
        self.episode = ServedEpisode(self.turns, idle_timeout_s=self._idle_timeout_s)
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
