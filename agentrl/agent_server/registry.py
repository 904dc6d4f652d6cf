"""Episode registry: the open episodes of an endpoint, and how the earlier ones ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.agent_server.api.api_error import PolicyApiError
from agentrl.agent_server.api.request import ChatRequest
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.engines.base import RolloutEngine
from agentrl.rollouts.turns import TurnResult

_MOST_ENDED = 4096
"""Ended episodes that are remembered; a client asks again within seconds."""


class EpisodeRegistry:
    """The episodes that the routes serve; used in the endpoint's event loop only.

    This class serves the episodes of agent programs, which their drivers open. ``StandaloneServer``
    overrides all but ``drop``.

    Args:
        engine: the engine behind the endpoint.
        token: the secret that opens episodes and asks for answers of none; empty where anybody may.
        hosts: names by which the endpoint may be asked for, besides its address.

    Attributes:
        episodes: the open episodes by id.
        ended: how each closed episode ended, by id, the oldest first; the oldest are forgotten.
    """

    def __init__(
        self, engine: RolloutEngine, *, token: str = "", hosts: Sequence[str] = ()
    ) -> None:
        self.engine = engine
        self.token = token
        self.hosts = tuple(hosts)
        self.episodes: dict[str, ServedEpisode] = {}
        self.ended: dict[str, str] = {}

    def drop(self, episode_id: str) -> None:
        """Stops to serve an episode, and remembers how it ended."""
        episode = self.episodes.pop(episode_id, None)
        if episode is not None:
            self.ended[episode_id] = episode.how_ended()
            if len(self.ended) > _MOST_ENDED:
                # A dict keeps the order of insertion: the first is the oldest.
                del self.ended[next(iter(self.ended))]

    async def complete_standalone(self, stream: StreamWriter) -> TurnResult:
        """Answers a request without an episode.

        Raises:
            PolicyApiError: only episodes are served here, or the turn failed.
        """
        raise _no_episode()

    def count_standalone(self, request: ChatRequest) -> int:
        """The tokens of a request without an episode; see ``ServedEpisode.count_tokens``.

        Raises:
            PolicyApiError: only episodes are served here, or they cannot be counted.
        """
        raise _no_episode()

    async def open(self, body: Any, root: str) -> dict[str, Any]:
        """Opens an episode.

        Args:
            body: the request's JSON object.
            root: the endpoint's URL, as the client reaches it.

        Returns:
            The episode's id, and its URLs below ``root``.

        Raises:
            PolicyApiError: episodes are not opened by request here, or the body is no task.
        """
        raise PolicyApiError(
            403,
            "not_here",
            "episodes are opened by the training run here, one for each program",
        )

    async def outcome(self, episode_id: str) -> dict[str, Any]:
        """The outcome of an ended episode; an agent program's is scored after it has exited."""
        return {"id": episode_id, "status": "ending"}


def _no_episode() -> PolicyApiError:
    return PolicyApiError(
        401,
        "no_such_episode",
        "this endpoint serves episodes; use the base URL and the API key of the environment "
        "(OPENAI_BASE_URL, ANTHROPIC_BASE_URL)",
    )
