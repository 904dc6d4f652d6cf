"""The player of an episode whose turns are asked for over the endpoint."""

from __future__ import annotations

import secrets

from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.server import PolicyServer
from agentrl.envs import Env
from agentrl.errors import EnvError
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Status

__all__ = ["ServedDriver", "new_episode_id"]


def new_episode_id(turns: TurnGenerator) -> str:
    """A name that nobody can guess, since whoever knows it may speak for the episode."""
    key = turns.builder.key
    return f"{key.group_index}-{key.rollout_index}-{key.attempt}-{secrets.token_urlsafe(12)}"


class ServedDriver:
    """Opens an episode on its host's endpoint and waits for its end.

    Args:
        turns: of the episode.
        server: the host's endpoint.
        idle_timeout_s: seconds without a request after which the episode ends.
    """

    def __init__(
        self, turns: TurnGenerator, server: PolicyServer, *, idle_timeout_s: float | None = None
    ) -> None:
        self.turns = turns
        self.episode_id = new_episode_id(turns)
        self.url = ""
        self._server = server
        self._idle_timeout_s = idle_timeout_s
        self.episode: ServedEpisode | None = None

    @property
    def env(self) -> Env | None:
        """None: whatever acts lives outside."""
        return None

    async def prepare(self) -> None:
        """Opens the episode; ``url`` is that of its routes."""
        self.episode = ServedEpisode(self.turns, idle_timeout_s=self._idle_timeout_s)
        self.url = await self._server.hold(self.episode_id, self.episode)

    async def play(self) -> Status:
        """Waits for the end, after which no turn is made; see ``EpisodeDriver.play``.

        Raises:
            EnvError: the agent ended the episode without asking for a turn.
            RewardError: there is no reward, and nothing that gives one.
        """
        assert self.episode is not None, "prepare comes first"
        try:
            status = await self._wait(self.episode)
        finally:  # a deadline may be spent: the rubric must see all turns that there will be
            await self.episode.close()
        if status.kind == "terminated" and not self.episode.num_turns:
            raise EnvError("the agent ended the episode without asking the policy anything")
        self.episode.record_rewards(status)
        return status

    async def close(self) -> None:
        """The endpoint forgets the episode."""
        self._server.drop(self.episode_id)

    async def _wait(self, episode: ServedEpisode) -> Status:
        """How the episode ends."""
        return await episode.until_end()
