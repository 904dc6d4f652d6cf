"""Player: plays episodes of a stage in the caller's event loop, with any policy and any driver.

``agentrl check``, ``play`` and ``replay`` play so. ``agentrl try`` takes one step of an opened
environment (``envs.opened_env``), and ``hosted_player`` plays with a stage's own policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from agentrl.engines.base import RolloutEngine
from agentrl.envs import EnvSpec
from agentrl.rollouts import (
    DriverSpec,
    EpisodeContext,
    EpisodeKey,
    RolloutSpec,
    run_episode,
)
from agentrl.types import Task, Trajectory


class Player:
    """Plays episodes that share a specification and a policy; an asynchronous context.

    Args:
        spec: what the episodes share.
        policy: gives their turns.
        sandboxes: lent to the episodes at one time; with 0 each environment makes its own.
    """

    def __init__(
        self, spec: RolloutSpec, policy: RolloutEngine, *, sandboxes: int = 0
    ) -> None:
        self.spec = spec
        self._parts = EpisodeContext.of(spec, policy, sandboxes=sandboxes)
        self.rubric = self._parts.rubric
        """What scores the episodes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._parts.close()

    async def play(
        self,
        task: Task,
        key: EpisodeKey,
        driver: EnvSpec | DriverSpec | None = None,
        *,
        states: Literal["off", "end", "turn"] | None = None,
    ) -> Trajectory:
        """One episode; a failure is a trajectory of status ``failed``.

        Args:
            task: the problem.
            key: the episode's name, from which its seeds are derived.
            driver: acts between the turns, in place of the specification's.
            states: when changed files are kept, in place of the specification's.
        """
        parts = self._parts
        # The pool and the rubric stay shared: the specification alone differs by episode.
        if states is not None:
            parts = replace(parts, spec=replace(self.spec, states=states))
        return await run_episode(parts, task, key, env=driver)
