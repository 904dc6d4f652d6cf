"""The one multi-turn loop: generate, parse, step, until the environment or a limit ends the episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np

from agentrl.envs import AsyncEnv, EnvSpec, EpisodeView, Rubric
from agentrl.errors import AgentRLError, EngineError, EnvError, RewardError
from agentrl.render import Renderer
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.engine import RolloutEngine
from agentrl.rollouts.golden import assert_golden_rule, assert_prefix
from agentrl.rollouts.spec import EpisodeKey, RolloutSpec
from agentrl.sandbox import SandboxPool
from agentrl.tools.parsers import ToolCallParser
from agentrl.types import (
    Action,
    Completion,
    GenerateRequest,
    Observation,
    SamplingParams,
    Segment,
    Status,
    StepResult,
    Task,
    ToolSpec,
    Trajectory,
    concat_ids,
    frozen_ints,
    seed_for,
)

__all__ = ["EpisodeParts", "Permits", "run_episode"]


@dataclass(slots=True)
class Permits:
    """How many episodes may be in each stage of one event loop at once."""

    preparing: asyncio.Semaphore
    running: asyncio.Semaphore
    scoring: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class EpisodeParts:
    """A ``RolloutSpec`` with its parts built, shared by the episodes of one host."""

    spec: RolloutSpec
    engine: RolloutEngine
    renderer: Renderer
    parser: ToolCallParser
    rubric: Rubric
    sandboxes: SandboxPool | None = None


@dataclass(slots=True)
class _Episode:
    parts: EpisodeParts
    builder: TrajectoryBuilder
    sampling: SamplingParams
    env_spec: EnvSpec
    env: AsyncEnv | None = None
    tools: tuple[ToolSpec, ...] = ()
    last_completion: tuple[Segment, ...] = ()
    fault: str = ""

    async def prepare(self) -> Observation:
        """Builds and resets the environment."""
        start, parts, task, key = time.monotonic(), self.parts, self.builder.task, self.builder.key
        self.env = AsyncEnv(self.env_spec.build(task, sandboxes=parts.sandboxes))
        observation = await self.env.reset(seed=seed_for(parts.spec.root_seed, "env", key.label, key.draw))
        self.count("prepare_s", time.monotonic() - start)
        return observation

    async def play(self, observation: Observation) -> Status:
        """Turns until the end; returns how the episode ended."""
        env, limits = self.env, self.parts.spec.limits
        assert env is not None
        while True:
            context, status = self._context(observation)
            if status is not None:
                return status
            async with _deadline(limits.turn_timeout_s, "turn_timeout"):
                completion = await self._generate(observation, context)
                if completion.finish_reason == "abort":
                    return Status("cancelled", "aborted")
                action = self._record(observation, context, completion)
                step_start = time.monotonic()
                result = await self._step(env, action)
            self.builder.add_step(result, time.monotonic() - step_start)
            if result.terminated:
                return Status("terminated")
            if result.truncated:
                return Status("truncated", str(result.info.get("reason", "env")))
            if len(self.builder.turns) >= limits.max_turns:
                return Status("truncated", "max_turns")
            observation = result.observation

    def _context(self, observation: Observation) -> tuple[tuple[Segment, ...], Status | None]:
        """The segments before the next completion, or the reason why there is no room for one."""
        builder, renderer, limits = self.builder, self.parts.renderer, self.parts.spec.limits
        if observation.tools is not None:
            self.tools = observation.tools
        if observation.rewrite is not None:
            builder.messages[:] = observation.rewrite
            builder.begin_sequence()
        builder.messages.extend(observation.messages)
        context = None
        if builder.parent is not None and self.last_completion:
            context = renderer.extend(concat_ids(self.last_completion), observation.messages)
        if context is None:  # also after a turn whose ids are not known: nothing can extend it
            builder.begin_sequence()
            context = renderer.prompt(builder.messages, self.tools)
            builder.prompt_tokens = sum(len(segment) for segment in context)
            if builder.prompt_tokens > limits.max_prompt_tokens:
                return (), self._no_room("data.max_prompt_tokens", limits.max_prompt_tokens)
        if self._length(context) >= limits.context_tokens:
            return (), self._no_room("rollout.context_tokens", limits.context_tokens)
        if self._budget(context) < 1:
            return (), Status("truncated", "max_response_tokens")
        return context, None

    def _no_room(self, setting: str, limit: int) -> Status:
        """The end of an episode whose sequence is too long; where the very prompt is, the task is at fault."""
        if self.builder.turns:
            return Status("truncated", setting.rpartition(".")[2])
        return Status(
            "failed",
            "data",
            f"the prompt of task {self.builder.task.id!r} has {self.builder.prompt_tokens} tokens, "
            f"{setting} is {limit}; raise it or leave the task out",
        )

    def _length(self, context: tuple[Segment, ...]) -> int:
        """Tokens of the sequence up to the next completion."""
        return int(self.builder.ids.size) + sum(len(segment) for segment in context)

    def _budget(self, context: tuple[Segment, ...]) -> int:
        """Tokens that the next completion may have under every limit."""
        limits, length = self.parts.spec.limits, self._length(context)
        used = length - self.builder.prompt_tokens
        return min(limits.max_turn_tokens, limits.max_response_tokens - used, limits.context_tokens - length)

    async def _generate(self, observation: Observation, context: tuple[Segment, ...]) -> Completion:
        builder, spec, key = self.builder, self.parts.spec, self.builder.key
        turn = len(builder.turns)
        request = GenerateRequest(
            request_id=f"{key.session_id}/{turn}",
            session_id=key.session_id,
            token_ids=frozen_ints(np.concatenate([builder.ids, concat_ids(context)])),
            sampling=replace(
                self.sampling,
                max_new_tokens=min(self.sampling.max_new_tokens, self._budget(context)),
                stop_token_ids=tuple(sorted({*self.sampling.stop_token_ids, *self.parts.renderer.stop_token_ids})),
            ),
            seed=seed_for(spec.root_seed, "sample", key.label, key.draw, key.sibling, observation.agent, turn),
            min_version=builder.min_version,
        )
        if builder.parent is not None:
            assert_prefix(request, builder.ids)
        start = time.monotonic()
        completion = await self.parts.engine.generate(request)
        self.count("generate_s", time.monotonic() - start)
        info = self.parts.engine.info()
        if info.returns_ids:
            assert_golden_rule(request, completion, info.vocab_size)
        return completion

    def _record(self, observation: Observation, context: tuple[Segment, ...], completion: Completion) -> Action:
        ids = concat_ids(completion.segments)
        text = completion.text if completion.text is not None else self.parts.renderer.decode(ids)
        if completion.stop_string is not None and completion.stop_string in text:
            text = text[: text.rindex(completion.stop_string)]
        parsed = self.parts.parser.parse(text)
        self.last_completion = completion.segments
        self.builder.add_turn(
            observed=observation.messages,
            context=context if completion.segments else (),
            completion=completion,
            parsed=parsed,
            text=text,
            agent=observation.agent,
            sampling=self.sampling,
        )
        return Action(text, parsed.message, parsed.tool_calls, parsed.problems, completion.finish_reason)

    async def _step(self, env: AsyncEnv, action: Action) -> StepResult:
        start = time.monotonic()
        try:
            result = await env.step(action)
        except EnvError as error:
            self.fault = f"turn {len(self.builder.turns)}: {error}"
            raise
        self.count("env_s", time.monotonic() - start)
        return result

    def count(self, stage: str, seconds: float) -> None:
        """Adds to the episode's seconds of a stage."""
        self.builder.timings[stage] = self.builder.timings.get(stage, 0.0) + seconds


class _LimitSpentError(Exception):
    """A deadline of the episode or turn is spent: the policy's doing, so the episode is truncated."""


@asynccontextmanager
async def _deadline(seconds: float, reason: str) -> AsyncIterator[None]:
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError:
        if scope.expired():
            raise _LimitSpentError(reason) from None
        raise


async def run_episode(
    parts: EpisodeParts,
    task: Task,
    key: EpisodeKey,
    *,
    sampling: SamplingParams | None = None,
    env: EnvSpec | None = None,
    permits: Permits | None = None,
    previous: Trajectory | None = None,
) -> Trajectory:
    """Plays one episode and scores it; a failure is a trajectory with status ``failed``, never an exception.

    Args:
        parts: engine, renderer, parser and rubric, with the spec they were built from.
        task: the problem.
        key: what the episode is called.
        sampling: how tokens are drawn; the spec's own by default.
        env: what the episode is played in; the spec's own by default.
        permits: bounds on the stages, shared with other episodes.
        previous: the failed attempt before this one. An environment that raises again after the same actions
            is the policy's doing: the episode is then truncated, rewarded and trained.

    Returns:
        The trajectory: terminated or truncated ones have a reward; ``failed(boundary)`` ones have none.
    """
    spec = parts.spec
    episode = _Episode(parts, TrajectoryBuilder(key, task), sampling or spec.sampling, env or spec.env)
    permits = permits or Permits(asyncio.Semaphore(1), asyncio.Semaphore(1), asyncio.Semaphore(1))
    try:
        trajectory = await _play_and_score(episode, permits, previous)
    except AgentRLError as error:
        retryable = bool(getattr(error, "retryable", isinstance(error, EnvError | RewardError)))
        trajectory = episode.builder.finish(
            Status("failed", error.boundary, str(error)), info={"retryable": retryable, "fault": episode.fault}
        )
    finally:
        problem = await _clean_up(episode)
    return replace(trajectory, info={**trajectory.info, "cleanup_error": problem}) if problem else trajectory


async def _play_and_score(episode: _Episode, permits: Permits, previous: Trajectory | None) -> Trajectory:
    spec, builder = episode.parts.spec, episode.builder
    try:
        async with permits.running, _deadline(spec.limits.episode_timeout_s, "episode_timeout"):
            async with permits.preparing:
                observation = await episode.prepare()
            status = await episode.play(observation)
    except _LimitSpentError as spent:
        status = Status("truncated", str(spent))
    except EnvError as error:
        if previous is None or not _repeats(episode, previous):
            raise
        status = Status("truncated", "env_exception", str(error))
    if status.kind == "truncated" and not builder.turns:
        status = Status("failed", "engine", f"{status.reason} before the first turn was finished")
    if not status.finished or episode.env is None:
        return builder.finish(status)
    async with permits.scoring:
        return await _score(episode, episode.env, status)


def _repeats(episode: _Episode, previous: Trajectory) -> bool:
    """Whether the same actions led a fresh environment to the same fault."""
    actions = [turn.text for turn in episode.builder.turns]
    return (
        bool(episode.fault)
        and episode.fault == previous.info.get("fault")
        and actions == [turn.text for turn in previous.turns]
    )


async def _score(episode: _Episode, env: AsyncEnv, status: Status) -> Trajectory:
    """The rubric runs before ``close``, while the sandbox lives."""
    spec, builder = episode.parts.spec, episode.builder
    start = time.monotonic()
    view = EpisodeView(
        task=builder.task,
        messages=tuple(builder.messages),
        turns=tuple(builder.turns),
        status=status,
        env=env.env,
    )
    parts = dict(await episode.parts.rubric.score(view))
    total = episode.parts.rubric.total(parts, step_reward=builder.step_reward, step_weight=spec.step_reward_weight)
    if any(turn.rewards for turn in builder.turns):
        parts["step"] = builder.step_reward
    episode.count("score_s", time.monotonic() - start)
    return builder.finish(status, rewards=parts, reward=total)


async def _clean_up(episode: _Episode) -> str:
    """Outermost first: the engine's session, then the environment, which ends its tools and its sandbox.

    Returns what went wrong, which is kept with the trajectory; what was learned of the episode stands.
    """
    problems = []
    try:
        await episode.parts.engine.release(episode.builder.key.session_id)
    except EngineError as error:
        problems.append(f"engine.release: {error}")
    if episode.env is not None:
        try:
            async with asyncio.timeout(episode.parts.spec.limits.cleanup_s):
                await episode.env.close()
        except (AgentRLError, TimeoutError) as error:
            problems.append(f"env.close: {str(error) or 'not done within cleanup_s'}")
    return "; ".join(problems)
