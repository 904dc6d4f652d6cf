"""Episode driver: the contract of what acts between the policy's turns.

- A driver steps an environment, or asks for turns itself, as an agent program does.
- The module imports nothing of ``rollouts``, so that a ``RolloutSpec`` names a ``DriverSpec``
  without a cycle of imports.
"""

from __future__ import annotations

from typing import Any, Protocol

from agentrl.envs import Env
from agentrl.types import Status


class EpisodeDriver(Protocol):
    """Plays one episode with the turns of one ``TurnGenerator``.

    ``prepare``, ``play`` and ``close`` are called once each, in this order.
    """

    @property
    def env(self) -> Env | None:
        """The environment that rewards may inspect, if there is one."""
        ...

    async def prepare(self) -> None:
        """Does everything that comes before the first turn."""
        ...

    async def play(self) -> Status:
        """Plays turns until the episode ends, and returns how it ended.

        Raises:
            AgentRLError: the episode failed.
        """
        ...

    async def close(self) -> None:
        """Frees all resources; called in every case, after the rubric."""
        ...


class DriverSpec(Protocol):
    """Builds the driver of an episode; picklable, because the host of the episode builds it."""

    @property
    def name(self) -> str:
        """What a record of the episode calls it (``Trajectory.env``)."""
        ...

    def driver(self, turns: Any) -> EpisodeDriver:
        """The driver of the episode whose ``TurnGenerator`` is ``turns``."""
        ...
