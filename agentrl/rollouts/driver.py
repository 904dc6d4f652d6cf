"""Who acts between the policy's turns: an environment that is stepped, or something that asks for turns itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from agentrl.envs import AsyncEnv, Env, EnvSpec, build_env
from agentrl.errors import EnvError
from agentrl.rollouts.builder import SequenceState
from agentrl.rollouts.deadlines import within
from agentrl.rollouts.snapshots import EpisodeState, NotResumable, StateSlot
from agentrl.rollouts.tool_calls import num_bad_turns
from agentrl.rollouts.turns import TurnGenerator, TurnResult
from agentrl.types import Message, Observation, Status, StepResult, ToolSpec, seed_for, with_images

__all__ = ["DriverSpec", "EnvDriver", "EpisodeDriver"]


class EpisodeDriver(Protocol):
    """Plays one episode with the turns of one ``TurnGenerator``; ``prepare``, ``play`` and ``close`` come once each."""

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


class DriverSpec(Protocol):
    """Makes the player of an episode; picklable, so that whoever hosts the episode makes it."""

    def driver(self, turns: TurnGenerator) -> EpisodeDriver: ...


class EnvDriver:
    """Steps an environment: observation, turn, action, until it ends the episode or there is no room for a turn.

    Args:
        turns: of the episode.
        spec: builds the environment.
        saved: where the episode goes on from, instead of from its beginning.
        standing: is told after each turn where the episode stands.
    """

    def __init__(
        self,
        turns: TurnGenerator,
        spec: EnvSpec,
        *,
        saved: EpisodeState | None = None,
        standing: StateSlot | None = None,
    ) -> None:
        self._turns = turns
        self._spec = spec
        self._saved = saved
        self._standing = standing
        self._env: AsyncEnv | None = None
        self._result, self._head = StepResult(Observation()), turns.head()
        self._tools: tuple[ToolSpec, ...] = ()
        self._bad_turns = 0 if saved is None else num_bad_turns(saved.turns)
        if saved is not None:
            self._result, self._head, self._tools = saved.result, turns.resume(saved), saved.tools

    @property
    def env(self) -> Env | None:
        """The environment, once it is built."""
        return None if self._env is None else self._env.env

    async def prepare(self) -> None:
        """Builds the environment, and resets it or restores its state."""
        start, parts, builder, saved = (
            time.monotonic(),
            self._turns.parts,
            self._turns.builder,
            self._saved,
        )
        builder.task = replace(builder.task, messages=await _with_images(builder.task.messages, {}))
        episode_id = builder.key.trajectory_id

        def make() -> Env:
            return self._spec.build(builder.task, sandboxes=parts.sandboxes, episode_id=episode_id)

        self._env = AsyncEnv(make() if self._spec.is_plain else await build_env(make))
        if saved is None:
            seed = seed_for(parts.spec.root_seed, "env", builder.key.label, builder.key.group_index)
            self._result = StepResult(await self._env.reset(seed=seed))
        else:
            await self._env.restore(saved.env)
        builder.count("prepare_s", time.monotonic() - start)

    async def play(self) -> Status:
        """See ``EpisodeDriver.play``."""
        assert self._env is not None, "prepare comes first"
        env, turns, limits = self._env, self._turns, self._turns.parts.spec.limits
        result, head, tools = self._result, self._head, self._tools
        while (end := self._end(result)) is None:
            observation = await _read(result.observation)
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
            head = made.head
            await self._keep(env, head, tools, result)
        return end

    async def close(self) -> None:
        """Closes the environment, which ends its tools and its sandbox."""
        if self._env is not None:
            await self._env.close()

    def _end(self, result: StepResult) -> Status | None:
        """How the episode ended with what its last turn caused; None while it goes on."""
        if result.terminated:
            return Status("terminated")
        if result.truncated:
            return Status("truncated", str(result.info.get("reason", "env")))
        turns, limits = self._turns.builder.turns, self._turns.parts.spec.limits
        if self._bad_turns >= limits.max_bad_turns:
            return Status("truncated", "bad_calls")
        return Status("truncated", "max_turns") if len(turns) >= limits.max_turns else None

    async def _step(self, env: AsyncEnv, made: TurnResult) -> StepResult:
        start, builder, action = time.monotonic(), self._turns.builder, made.action
        self._bad_turns = self._bad_turns + 1 if action.problems and not action.tool_calls else 0
        try:
            result = await env.step(action)
        except EnvError as error:
            builder.fault = f"turn {len(builder.turns)}: {error}"
            raise
        seconds = time.monotonic() - start
        builder.count("env_s", seconds)
        builder.add_step(result, seconds)
        return result

    async def _keep(
        self, env: AsyncEnv, head: SequenceState, tools: tuple[ToolSpec, ...], result: StepResult
    ) -> None:
        """Says where the episode stands. Once its state cannot be kept, it stands where it could be last."""
        standing, builder = self._standing, self._turns.builder
        if standing is None:
            return
        start = time.monotonic()
        try:
            state = await env.save()
        except EnvError as error:
            self._standing = None
            if isinstance(standing.now, NotResumable):
                standing.now = NotResumable(str(error))
            return
        finally:
            builder.count("save_s", time.monotonic() - start)
        standing.now = EpisodeState(
            turns=tuple(builder.turns),
            head=head,
            tools=tools,
            result=result,
            env=state,
            num_calls=self._turns.num_calls,
            restarts=builder.restarts,
            timings=dict(builder.timings),
        )


async def _read(observation: Observation) -> Observation:
    """The observation with its images read, wherever they come from."""
    named, rewrite = observation.images, observation.rewrite
    messages = await _with_images(observation.messages, named)
    written = None if rewrite is None else await _with_images(rewrite, named)
    if messages is observation.messages and written is rewrite:
        return observation
    return replace(observation, messages=messages, rewrite=written)


async def _with_images(
    messages: tuple[Message, ...], named: Mapping[str, object]
) -> tuple[Message, ...]:
    """``with_images``, in a thread where there is anything to read."""
    if all(isinstance(message.get("content"), str) for message in messages):
        return messages
    return await asyncio.to_thread(with_images, messages, named)
