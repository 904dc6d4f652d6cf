"""Player: plays episodes of a stage in the caller's event loop, with any policy and any driver.

``agentrl check``, ``play`` and ``replay`` play so. ``agentrl try`` takes one step of an opened
environment, and ``hosted_player`` plays with a stage's own policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal, Self

from agentrl.engines.base import RolloutEngine
from agentrl.envs import AsyncEnv, EnvSpec, build_env
from agentrl.rollouts import DriverSpec, EpisodeContext, EpisodeKey, RolloutSpec, run_episode
from agentrl.types import Observation, Task, Trajectory


class Player:
    """Plays episodes that share a specification and a policy; an asynchronous context.

    Args:
        spec: what the episodes share.
        policy: gives their turns.
        sandboxes: lent to the episodes at one time; with 0 each environment makes its own.
    """

    def __init__(self, spec: RolloutSpec, policy: RolloutEngine, *, sandboxes: int = 0) -> None:
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
        if states is not None:
            parts = replace(parts, spec=replace(self.spec, states=states))
        return await run_episode(parts, task, key, env=driver)


@asynccontextmanager
async def opened_env(
    env: EnvSpec, task: Task, *, seed: int
) -> AsyncIterator[tuple[AsyncEnv, Observation]]:
    """An environment of its own after its ``reset``, and how it opens; no episode plays in it.

    Raises:
        AgentRLError: there is no environment, or ``reset`` raised or broke a rule.
    """
    built = AsyncEnv(await build_env(lambda: env.build(task)))
    try:
        yield built, await built.reset(seed=seed)
    finally:
        await built.close()
