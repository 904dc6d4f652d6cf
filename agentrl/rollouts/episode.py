"""One episode: who plays it is prepared, plays, is scored while it lives, and is closed, however it ended."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace

from agentrl.envs import EnvSpec, EpisodeView
from agentrl.errors import AgentRLError, EnvError, RewardError, ServerError
from agentrl.llm import CONTEXT_EXCEEDED
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.context import EpisodeContext, PhaseSemaphores
from agentrl.rollouts.deadlines import LimitSpentError, StragglerCancel, within
from agentrl.rollouts.driver import DriverSpec, EnvDriver, EpisodeDriver
from agentrl.rollouts.rollout_spec import EpisodeKey
from agentrl.rollouts.snapshots import EpisodeState, NotResumable, StateSlot
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import SamplingParams, Status, Task, Trajectory, raised_at, users_traceback

__all__ = ["run_episode"]

_DEADLINES = frozenset({"episode_timeout", "turn_timeout"})


async def run_episode(
    parts: EpisodeContext,
    task: Task,
    key: EpisodeKey,
    *,
    sampling: SamplingParams | None = None,
    env: EnvSpec | DriverSpec | None = None,
    permits: PhaseSemaphores | None = None,
    previous: Trajectory | None = None,
    cut: StragglerCancel | None = None,
    saved: EpisodeState | None = None,
    standing: StateSlot | None = None,
) -> Trajectory:
    """Plays one episode and scores it; a failure is a trajectory with status ``failed``, never an exception.

    Args:
        parts: engine, renderer, parser and rubric, with the spec they were built from.
        task: the problem.
        key: what the episode is called.
        sampling: how tokens are drawn; the spec's own by default.
        env: what the episode is played in, or who plays it; the spec's own by default.
        permits: bounds on the stages, shared with other episodes.
        previous: the failed attempt before this one. An environment that raises again after the same actions
            is the policy's doing: the episode is then truncated, rewarded and trained.
        cut: ends the episode early: it is truncated with the turns that it has, or cancelled without any.
        saved: where an episode in an environment goes on from, instead of from its beginning.
        standing: is told after each turn where such an episode stands.

    Returns:
        The trajectory: terminated or truncated ones have a reward; ``failed(boundary)`` ones have none.
    """
    builder = TrajectoryBuilder(key, task)
    turns = TurnGenerator(parts, builder, sampling or parts.spec.sampling)
    chosen = env or parts.spec.env
    driver: EpisodeDriver
    if isinstance(chosen, EnvSpec):
        driver = EnvDriver(turns, chosen, saved=saved, standing=standing)
    else:
        driver = chosen.driver(turns)
        if standing is not None:
            standing.now = NotResumable("what plays it is no environment, and cannot be saved")
    permits = permits or PhaseSemaphores(
        asyncio.Semaphore(1), asyncio.Semaphore(1), asyncio.Semaphore(1)
    )
    try:
        trajectory = await _play_and_score(turns, driver, permits, previous, cut)
    except AgentRLError as error:
        retryable = bool(getattr(error, "retryable", isinstance(error, EnvError | RewardError)))
        status = Status("failed", error.boundary, str(error))
        trajectory = _failed(builder, status, retryable=retryable, error=error)
    finally:
        problem = await _clean_up(turns, driver)
    return (
        replace(trajectory, info={**trajectory.info, "cleanup_error": problem})
        if problem
        else trajectory
    )


async def _play_and_score(
    turns: TurnGenerator,
    driver: EpisodeDriver,
    permits: PhaseSemaphores,
    previous: Trajectory | None,
    cut: StragglerCancel | None,
) -> Trajectory:
    builder, limits = turns.builder, turns.parts.spec.limits
    raised: dict[str, str] = {}
    try:
        async with permits.running, AsyncExitStack() as preparing:
            await preparing.enter_async_context(
                permits.preparing
            )  # the wait for others who prepare is not its own
            async with within(limits.episode_timeout_s, "episode_timeout", cut):
                await driver.prepare()
                await preparing.aclose()
                status = await driver.play()
    except LimitSpentError as spent:
        status = Status("truncated", str(spent))
    except ServerError as error:
        if error.code != CONTEXT_EXCEEDED or not builder.turns:
            raise
        status = Status("truncated", "context_tokens", str(error))
    except EnvError as error:
        if previous is None or not builder.turns or not _repeats(builder, previous):
            raise
        status = Status("truncated", "env_exception", str(error))
        raised = _raised(error)
    if status.kind == "truncated" and not builder.turns:
        if status.reason == StragglerCancel.reason:
            return builder.finish(Status("cancelled", StragglerCancel.reason))
        return _failed(
            builder, _spent_on_nothing(status.reason, turns), retryable=status.reason in _DEADLINES
        )
    if not status.finished:
        return builder.finish(status)
    async with permits.scoring:
        trajectory = await _score(turns, driver, status)
    return replace(trajectory, info={**trajectory.info, **raised}) if raised else trajectory


def _failed(
    builder: TrajectoryBuilder,
    status: Status,
    *,
    retryable: bool,
    error: BaseException | None = None,
) -> Trajectory:
    raised = {} if error is None else _raised(error)
    return builder.finish(status, info={"retryable": retryable, "fault": builder.fault, **raised})


def _raised(error: BaseException) -> dict[str, str]:
    """Where in the user's code an error came from, for whoever has to mend it; nothing where none took part."""
    place = raised_at(error)
    return {"raised_at": place, "traceback": users_traceback(error)} if place else {}


def _spent_on_nothing(reason: str, turns: TurnGenerator) -> Status:
    """What was cut before a turn was finished is named for what was waited for: it is no doing of the policy."""
    if turns.num_calls:
        return Status(
            "failed", "engine", f"{reason} while waiting for the engine's first completion"
        )
    return Status("failed", "env", f"{reason} before the policy was asked for its first turn")


def _repeats(builder: TrajectoryBuilder, previous: Trajectory) -> bool:
    """Whether the same actions led to the same fault once more, in an environment made anew."""
    actions = [turn.text for turn in builder.turns]
    return (
        bool(builder.fault)
        and builder.fault == previous.info.get("fault")
        and actions == [turn.text for turn in previous.turns]
    )


async def _score(turns: TurnGenerator, driver: EpisodeDriver, status: Status) -> Trajectory:
    """The rubric runs before ``close``, while the sandbox lives."""
    spec, rubric, builder = turns.parts.spec, turns.parts.rubric, turns.builder
    start = time.monotonic()
    view = EpisodeView(
        task=builder.task,
        messages=builder.messages,
        turns=tuple(builder.turns),
        status=status,
        env=driver.env,
    )
    parts = dict(await rubric.score(view))
    total = rubric.total(
        parts, step_reward=builder.step_reward, step_weight=spec.step_reward_weight
    )
    if any(turn.rewards for turn in builder.turns):
        parts["step"] = builder.step_reward
    builder.count("score_s", time.monotonic() - start)
    return builder.finish(status, rewards=parts, reward=total, info=turns.retokenized())


async def _clean_up(turns: TurnGenerator, driver: EpisodeDriver) -> str:
    """Outermost first: the engine's sessions, then the player, which ends its tools, sandbox or program.

    Returns what went wrong, which is kept with the trajectory; what was learned of the episode stands.
    """
    problems = [await turns.release()]
    try:
        async with asyncio.timeout(turns.parts.spec.limits.cleanup_s):
            await driver.close()
    except (AgentRLError, TimeoutError) as error:
        problems.append(f"env.close: {str(error) or 'not done within cleanup_s'}")
    return "; ".join(problem for problem in problems if problem)
