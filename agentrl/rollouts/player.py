"""Who acts between the policy's turns: an environment that is stepped, or something that asks for turns itself."""

from __future__ import annotations

import time
from typing import Protocol

from agentrl.envs import AsyncEnv, Env, EnvSpec
from agentrl.errors import EnvError
from agentrl.rollouts.deadline import within
from agentrl.rollouts.turns import MadeTurn, TurnMaker
from agentrl.types import Observation, Status, StepResult, seed_for

__all__ = ["EnvPlayer", "Player", "PlayerSpec"]


class Player(Protocol):
    """Plays one episode with the turns of one ``TurnMaker``; ``prepare``, ``play`` and ``close`` come once each."""

    @property
    def env(self) -> Env | None:
        """The environment that rewards may look at, where there is one."""
        ...

    async def prepare(self) -> None:
        """Everything before the first turn."""
        ...

    async def play(self) -> Status:
        """Turns until the end; how the episode ended.

        Raises:
            AgentRLError: it failed.
        """
        ...

    async def close(self) -> None:
        """Frees everything; comes in any case, after the rubric."""
        ...


class PlayerSpec(Protocol):
    """Makes the player of an episode; picklable, so that whoever hosts the episode makes it."""

    def player(self, turns: TurnMaker) -> Player: ...


class EnvPlayer:
    """Steps an environment: observation, turn, action, until it ends the episode or there is no room for a turn.

    Args:
        turns: of the episode.
        spec: builds the environment.
    """

    def __init__(self, turns: TurnMaker, spec: EnvSpec) -> None:
        self._turns = turns
        self._spec = spec
        self._env: AsyncEnv | None = None
        self._opening = Observation()

    @property
    def env(self) -> Env | None:
        """The environment, once it is built."""
        return None if self._env is None else self._env.env

    async def prepare(self) -> None:
        """Builds and resets the environment."""
        start, parts, builder = time.monotonic(), self._turns.parts, self._turns.builder
        self._env = AsyncEnv(self._spec.build(builder.task, sandboxes=parts.sandboxes))
        seed = seed_for(parts.spec.root_seed, "env", builder.key.label, builder.key.draw)
        self._opening = await self._env.reset(seed=seed)
        builder.count("prepare_s", time.monotonic() - start)

    async def play(self) -> Status:
        """See ``Player.play``."""
        assert self._env is not None, "prepare comes first"
        env, turns, limits = self._env, self._turns, self._turns.parts.spec.limits
        observation, head = self._opening, turns.head()
        tools = observation.tools or ()
        while True:
            if observation.tools is not None:
                tools = observation.tools
            if observation.rewrite is not None:
                head = head.beginning(observation.rewrite)
            ready = turns.ready(head, observation.messages, tools)
            if isinstance(ready, Status):
                return ready
            async with within(limits.turn_timeout_s, "turn_timeout"):
                made = await turns.make(ready, agent=observation.agent)
                if made is None:
                    return Status("cancelled", "aborted")
                result = await self._step(env, made)
            if result.terminated:
                return Status("terminated")
            if result.truncated:
                return Status("truncated", str(result.info.get("reason", "env")))
            if len(turns.builder.turns) >= limits.max_turns:
                return Status("truncated", "max_turns")
            observation, head = result.observation, made.head

    async def close(self) -> None:
        """Closes the environment, which ends its tools and its sandbox."""
        if self._env is not None:
            await self._env.close()

    async def _step(self, env: AsyncEnv, made: MadeTurn) -> StepResult:
        start, builder = time.monotonic(), self._turns.builder
        try:
            result = await env.step(made.action)
        except EnvError as error:
            builder.fault = f"turn {len(builder.turns)}: {error}"
            raise
        seconds = time.monotonic() - start
        builder.count("env_s", seconds)
        builder.add_step(result, seconds)
        return result
