"""Env driver: steps one environment with the policy's turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from agentrl.envs import AsyncEnv, Env, EnvSpec, build_env, observation_findings
from agentrl.errors import EnvError, ServerError
from agentrl.llm import CONTEXT_EXCEEDED
from agentrl.rollouts.builder import SequenceState
from agentrl.rollouts.deadlines import Deadline
from agentrl.rollouts.states.snapshots import (
    EpisodeState,
    NotResumable,
    SeatState,
    StateSlot,
)
from agentrl.rollouts.states.state_recorder import StateRecorder
from agentrl.rollouts.tool_calls import num_bad_turns
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import (
    Action,
    Message,
    Observation,
    Status,
    StepResult,
    ToolSpec,
    seed_for,
    with_images,
)
from agentrl.types.clock import WaitClock, counted_by
from agentrl.types.user_code.wall import failed_as, wall

_NO_MESSAGE = "something-to-answer"


@dataclass(slots=True, eq=False)
class ActingSeat:
    """One agent of the running episode.

    Args:
        turns: generates its turns.
        sequence: that its next turn extends.
        tools: on offer to it.
        bad_turns: its consecutive last turns without a readable call.
    """

    turns: TurnGenerator
    sequence: SequenceState
    tools: tuple[ToolSpec, ...] = ()
    bad_turns: int = 0


class EnvDriver:
    """Alternates observation, turn and action until the environment or a limit ends the episode.

    Each agent that the environment names has a history of its own.

    Args:
        turns: the episode's turn generator.
        spec: builds the environment.
        saved: the state from which the episode continues; None starts it from its beginning.
        slot: receives the episode's state after each turn.
        states: adds the environment's states, for people to look at, to the turns.
    """

    def __init__(
        self,
        turns: TurnGenerator,
        spec: EnvSpec,
        *,
        saved: EpisodeState | None = None,
        slot: StateSlot | None = None,
        states: StateRecorder | None = None,
    ) -> None:
        self._turns = turns
        self._spec = spec
        self._saved = saved
        self._slot = slot
        self._states = states or StateRecorder(turns.context, turns.builder)
        self._env: AsyncEnv | None = None
        self._result = StepResult(Observation())
        self._seats: dict[str, ActingSeat] = {}
        if saved is not None:
            self._result = saved.result
            turns.resume(saved)
            for agent, own in saved.seats.items():
                generator = turns.of_agent(agent)
                sequence = generator.resume_seat(own)
                bad_turns = num_bad_turns(saved.turns, agent)
                self._seats[agent] = ActingSeat(generator, sequence, own.tools, bad_turns)

    @property
    def env(self) -> Env | None:
        """The environment, once it is built."""
        return None if self._env is None else self._env.env

    async def prepare(self) -> None:
        """Builds the environment, and resets it or restores its state."""
        start = time.monotonic()
        context = self._turns.context
        builder = self._turns.builder
        # Files of images are read here, once, so that the record has what the policy saw.
        builder.task = replace(
            builder.task, messages=await _with_images(builder.task.messages, {})
        )
        make = partial(
            self._spec.build,
            builder.task,
            sandboxes=context.sandboxes,
            episode_id=builder.key.trajectory_id,
        )
        self._env = AsyncEnv(make() if self._spec.is_plain else await build_env(make))
        if context.renderer is not None:
            self._env.use_tokenizer(context.renderer.token_ends)
        if self._saved is None:
            key = builder.key
            # The seed has no rollout index: all rollouts of a group meet the same environment.
            seed = seed_for(context.spec.root_seed, "env", key.label, key.group_index)
            self._result = StepResult(await self._env.reset(seed=seed))
            await self._states.after_reset(self._env)
        else:
            await self._env.restore(self._saved.env)
        builder.count("prepare_s", time.monotonic() - start)

    async def play(self) -> Status:
        """See ``EpisodeDriver.play``."""
        assert self._env is not None, "prepare comes first"
        turns = self._turns
        timeout_s = turns.context.spec.episode.turn_timeout_s
        while (end := self._end()) is None:
            agent = self._result.observation.agent
            seat = self._seat(agent)
            observed = await self._observe(seat)
            request = seat.turns.next_request(seat.sequence, observed, seat.tools)
            if isinstance(request, Status):
                return request
            async with Deadline(timeout_s, "turn_timeout"):
                try:
                    turn = await seat.turns.generate(request, agent=agent)
                except ServerError as error:
                    # Only a server of messages knows its own context: a history that is too long
                    # for it ends the episode, and is no fault of ours.
                    if error.code != CONTEXT_EXCEEDED or not turns.builder.turns:
                        raise
                    return Status("truncated", "context_tokens", str(error))
                if turn is None:
                    return Status("cancelled", "aborted")
                self._result = await self._step(self._env, seat, turn.action)
            seat.sequence = turn.sequence
            await self._save_state(self._env)
        await self._keep_last_observation()
        return end

    async def close(self) -> None:
        """Closes the environment, which ends its tools and its sandbox."""
        if self._env is not None:
            await self._env.close()

    def _seat(self, agent: str) -> ActingSeat:
        if agent not in self._seats:
            generator = self._turns.of_agent(agent)
            self._seats[agent] = ActingSeat(generator, generator.first_sequence())
        return self._seats[agent]

    async def _observe(self, seat: ActingSeat) -> tuple[Message, ...]:
        """The new messages of the observation that the next turn answers."""
        observation = self._result.observation
        observed = await _with_images(observation.messages, observation.images)
        self._turns.builder.observe(observed, observation.info)
        if observation.tools is not None:
            seat.tools = observation.tools
        if observation.tools_in_messages is not None:
            seat.turns.tools_in_messages = observation.tools_in_messages
        if observation.rewrite is not None:
            rewritten = await _with_images(observation.rewrite, observation.images)
            seat.sequence = seat.sequence.restarted(rewritten, "rewrite")
        return observed

    def _end(self) -> Status | None:
        """How the last turn's result ended the episode; None while it continues."""
        result = self._result
        limits = self._turns.context.spec.episode
        if result.terminated:
            return Status("terminated")
        if result.truncated:
            return Status("truncated", str(result.info.get("reason", "env")))
        if any(seat.bad_turns >= limits.max_bad_turns for seat in self._seats.values()):
            return Status("truncated", "bad_calls")
        agent = result.observation.agent
        own_turns = sum(turn.agent == agent for turn in self._turns.builder.turns)
        if own_turns >= limits.max_turns:
            return Status("truncated", "max_turns")
        return None

    async def _step(self, env: AsyncEnv, seat: ActingSeat, action: Action) -> StepResult:
        start = time.monotonic()
        builder = self._turns.builder
        # A turn whose calls are all unreadable counts towards max_bad_turns; one readable call ends
        # the count.
        is_bad = bool(action.problems) and not action.tool_calls
        seat.bad_turns = seat.bad_turns + 1 if is_bad else 0
        waits = WaitClock()
        called = ", ".join(dict.fromkeys(call.name for call in action.tool_calls))
        builder.wait_for(f"tool {called}" if called else "the environment's step")
        try:
            with counted_by(waits):
                result = await env.step(action)
        except EnvError as error:
            builder.fault = f"turn {len(builder.turns)}: {error}"
            raise
        seconds = time.monotonic() - start
        builder.count("env_s", seconds)
        builder.add_step(result, start, seconds, waits)
        await self._states.after_step(env)
        return result

    async def _keep_last_observation(self) -> None:
        """Keeps what came after the last turn; what is no observation is named."""
        builder = self._turns.builder
        last: object = self._result.observation
        if last is None:
            return
        try:
            with wall(failed_as(EnvError, "it cannot be read:")):
                found = [
                    f
                    for f in observation_findings(last, verb="step")
                    if f.rule != _NO_MESSAGE
                ]
                faults = "; ".join(map(str, found))
                if not faults and isinstance(last, Observation):
                    builder.observe(
                        await _with_images(last.messages, last.images), last.info
                    )
        except EnvError as error:
            faults = str(error)
        if faults:
            builder.info["last_observation_error"] = faults

    async def _save_state(self, env: AsyncEnv) -> None:
        """Writes the episode's state to the slot.

        After the first state that cannot be saved, the slot keeps the last one that could.
        """
        slot = self._slot
        builder = self._turns.builder
        if slot is None:
            return
        start = time.monotonic()
        try:
            env_state = await env.save()
        except EnvError as error:
            self._slot = None
            if isinstance(slot.state, NotResumable):
                slot.state = NotResumable(str(error))
            return
        finally:
            builder.count("save_s", time.monotonic() - start)
        slot.state = EpisodeState(
            turns=tuple(builder.turns),
            seats={
                agent: SeatState(seat.sequence, seat.tools, seat.turns.num_calls)
                for agent, seat in self._seats.items()
            },
            result=self._result,
            env=env_state,
            restarts=dict(builder.restarts),
            timings=dict(builder.timings),
            first_state=builder.first_state,
            unclaimed=dict(builder.unclaimed),
        )


async def _with_images(
    messages: tuple[Message, ...], images: Mapping[str, object]
) -> tuple[Message, ...]:
    """``with_images``, in a thread if a message may hold an image."""
    if all(isinstance(message.get("content"), str) for message in messages):
        return messages
    return await asyncio.to_thread(with_images, messages, images)
