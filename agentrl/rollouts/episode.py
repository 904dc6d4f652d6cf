"""Episode: prepares, plays, scores and closes one episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from traceback import format_exception
from typing import Any

from agentrl.envs import EnvSpec, EpisodeView, Score
from agentrl.errors import AgentRLError, EnvError, ToolFaultError
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.context import EpisodeContext, PhaseSemaphores
from agentrl.rollouts.deadlines import Deadline, LimitSpentError, StragglerCancel
from agentrl.rollouts.driver import DriverSpec, EpisodeDriver
from agentrl.rollouts.env_driver import EnvDriver
from agentrl.rollouts.rollout_spec import EpisodeKey
from agentrl.rollouts.states.snapshots import EpisodeState, NotResumable, StateSlot
from agentrl.rollouts.states.state_recorder import StateRecorder
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import (
    SamplingParams,
    Seat,
    Status,
    Task,
    Trajectory,
)
from agentrl.types.clock import clock_paused
from agentrl.types.env import MAIN_AGENT
from agentrl.types.trajectory import SEATS
from agentrl.types.user_code.place import described, told_of

_DEADLINES = frozenset({"episode_timeout", "turn_timeout"})
_FRAMES = 20
"""Of a traceback, the last ones that are kept."""


async def run_episode(
    context: EpisodeContext,
    task: Task,
    key: EpisodeKey,
    *,
    sampling: SamplingParams | None = None,
    env: EnvSpec | DriverSpec | None = None,
    permits: PhaseSemaphores | None = None,
    previous: Trajectory | None = None,
    straggler: StragglerCancel | None = None,
    saved: EpisodeState | None = None,
    slot: StateSlot | None = None,
    started: Callable[[TrajectoryBuilder], object] = lambda _: None,
) -> Trajectory:
    """Plays one episode and scores it; a failure is a trajectory of status ``failed``, no
    exception.

    Args:
        context: engine, renderer, parser and rubric, with their spec.
        task: the problem.
        key: the episode's name.
        sampling: overrides the spec's sampling.
        env: overrides the spec's environment or driver.
        permits: bounds on the phases, shared with other episodes.
        previous: the failed attempt before this one. If the environment raises again after the same
            actions, or a service dies again under a tool's call, the policy has caused it: the
            episode is truncated, rewarded and trained.
        straggler: ends the episode early. The episode is then truncated after its finished turns,
            or cancelled if it has none.
        saved: the state from which an episode in an environment continues.
        slot: receives the state of such an episode after each turn.
        started: is given what records the episode.

    Returns:
        The trajectory. Terminated and truncated ones have a reward, ``failed(boundary)`` ones none.
    """
    builder = TrajectoryBuilder(key, task)
    started(builder)
    turns = TurnGenerator(context, builder, sampling or context.spec.episode.sampling)
    chosen = env or context.spec.env
    builder.env = chosen.name
    states = StateRecorder(context, builder)
    driver: EpisodeDriver
    if isinstance(chosen, EnvSpec):
        driver = EnvDriver(turns, chosen, saved=saved, slot=slot, states=states)
    else:
        driver = chosen.driver(turns)
        if slot is not None:
            slot.state = NotResumable("its driver is no environment, and cannot be saved")
    try:
        with builder.clock.of_this_task():
            status = await _play_and_score(
                turns, driver, states, permits or PhaseSemaphores(), previous, straggler
            )
    except AgentRLError as error:
        status = Status("failed", error.boundary, str(error))
        builder.info |= {
            "retryable": error.retryable,
            "fault": builder.fault,
            **told_of(error),
        }
    except Exception as error:  # noqa: BLE001
        # The boundary: what no wall has met ends its own episode, and not the run.
        status = Status(
            "failed", AgentRLError.boundary, f"the episode raised {described(error)}"
        )
        told = {"traceback": "".join(format_exception(error)[-_FRAMES:]), **told_of(error)}
        builder.info |= {"retryable": True, "fault": builder.fault, **told}
    finally:
        problem = await _clean_up(turns, driver)
    if problem:
        builder.info["cleanup_error"] = problem
    return builder.finish(status)


async def _play_and_score(
    turns: TurnGenerator,
    driver: EpisodeDriver,
    states: StateRecorder,
    permits: PhaseSemaphores,
    previous: Trajectory | None,
    straggler: StragglerCancel | None,
) -> Status:
    """Plays the episode, and scores it if it finished.

    Returns:
        How it ended; its rewards are in the builder.
    """
    builder = turns.builder
    timeout_s = turns.context.spec.episode.episode_timeout_s
    try:
        async with AsyncExitStack() as playing, AsyncExitStack() as preparing:
            # before the deadline starts, and outside of every other: other episodes cause this wait
            with clock_paused():
                await playing.enter_async_context(permits.running)
                await preparing.enter_async_context(permits.preparing)
            builder.start()
            builder.wait_for("the environment's reset")
            async with Deadline(timeout_s, "episode_timeout", straggler):
                await driver.prepare()
                await preparing.aclose()
                status = await driver.play()
    except LimitSpentError as spent:
        status = Status("truncated", str(spent))
    except (EnvError, ToolFaultError) as error:
        caused = _caused_by_policy(turns, error, previous)
        if caused is None:
            raise
        status = caused
    if status.kind == "truncated" and not builder.turns:
        return _without_turns(turns, status.reason)
    if driver.env is not None:
        await states.at_end(driver.env)
    if status.finished:
        # Rubrics may run code or ask judges, so that fewer score than play.
        async with AsyncExitStack() as scoring:
            with clock_paused():
                await scoring.enter_async_context(permits.scoring)
            await _score(turns, driver, status)
    return status


def _without_turns(turns: TurnGenerator, reason: str) -> Status:
    """How an episode ended that was ended before its first completed turn.

    A timeout at that point is an infrastructure failure (engine or env), not a truncation.
    """
    if reason == StragglerCancel.reason:
        return Status("cancelled", reason)
    turns.builder.info |= {"retryable": reason in _DEADLINES, "fault": turns.builder.fault}
    if turns.has_asked:
        waiting = f"{reason} while waiting for the engine's first completion"
        return Status("failed", "engine", waiting)
    return Status(
        "failed", "env", f"{reason} before the policy was asked for its first turn"
    )


def _caused_by_policy(
    turns: TurnGenerator, error: EnvError | ToolFaultError, previous: Trajectory | None
) -> Status | None:
    """How the episode ends if the policy has caused the failure; None where it is ours."""
    builder = turns.builder
    if isinstance(error, ToolFaultError):
        crashed = _is_own_crash(turns, error, previous)
        return Status("truncated", "tool_crash", str(error)) if crashed else None
    if not _repeats(builder, previous):
        return None
    builder.info.update(told_of(error))
    return Status("truncated", "env_exception", str(error))


def _repeats(builder: TrajectoryBuilder, previous: Trajectory | None) -> bool:
    """Whether the same actions led to the same fault in a new environment."""
    return (
        previous is not None
        and bool(builder.turns and builder.fault)
        and builder.fault == previous.info.get("fault")
        and [turn.text for turn in builder.turns] == [turn.text for turn in previous.turns]
    )


def _is_own_crash(
    turns: TurnGenerator, error: ToolFaultError, previous: Trajectory | None
) -> bool:
    """Whether a service died under the episode's own calls, so that the policy has caused it.

    It must have died under a call of the attempt before too, and have answered in between. Where
    other episodes were calling it at the time, it must have died under the same call in every
    attempt.
    """
    if not error.by_call:
        return False
    earlier: Mapping[str, Any] = (previous.info if previous else {}).get("tool_crash", {})
    if earlier.get("tool") != error.tool or error.answers <= earlier["answers"]:
        earlier = {}
    alone = error.alone + earlier.get("alone", 0)
    same = 1 + (earlier.get("same", 0) if earlier.get("call") == error.call else 0)
    turns.builder.info["tool_crash"] = {
        "tool": error.tool,
        "call": error.call,
        "alone": alone,
        "same": same,
        "answers": error.answers,
    }
    return bool(turns.builder.turns) and (
        alone > 1 or same > max(1, turns.context.spec.episode.max_retries)
    )


async def _score(turns: TurnGenerator, driver: EpisodeDriver, status: Status) -> None:
    """Runs the rubric; called before the driver closes, while the sandbox lives."""
    spec = turns.context.spec
    builder = turns.builder
    start = time.monotonic()
    builder.wait_for("the reward")
    scored = {
        agent: await _score_seat(turns, driver, status, agent)
        for agent in builder.conversations or (MAIN_AGENT,)
    }
    seats = {agent: seat for agent, (seat, _) in scored.items()}
    if spec.agents or len(seats) > 1:
        builder.info[SEATS] = {agent: asdict(seat) for agent, seat in seats.items()}
    builder.timings["score_at_s"] = builder.since_start(start)
    builder.count("score_s", time.monotonic() - start)
    builder.info = {**turns.measure_retokenization(), **builder.info}
    trained = [agent for agent, seat in seats.items() if seat.train]
    if not trained:
        raise EnvError(
            f"the episode of task {builder.task.id!r} ended before a trained agent had a turn, so "
            f"that nobody has a reward; those that acted are {', '.join(seats)}: let a trained "
            "one act, or set train: true for one",
            retryable=False,
        )
    chosen = MAIN_AGENT if MAIN_AGENT in trained else trained[0]
    builder.rewards = seats[chosen].rewards
    builder.reward = seats[chosen].reward
    for agent, (_, reasons) in scored.items():
        given = {
            name if agent == chosen else f"{agent}: {name}": w
            for name, w in reasons.items()
        }
        builder.reasons = {**builder.reasons, **given}


async def _score_seat(
    turns: TurnGenerator, driver: EpisodeDriver, status: Status, agent: str
) -> tuple[Seat, dict[str, Any]]:
    """What one agent got, and why; the rubric runs for those that are trained."""
    spec = turns.context.spec
    builder = turns.builder
    rubric = turns.context.rubric
    train = spec.trains(agent)
    played = tuple(turn for turn in builder.turns if turn.agent == agent)
    step_reward = sum(sum(turn.rewards.values()) for turn in played)
    scores: Mapping[str, Score] = {}
    if train:
        view = EpisodeView(
            task=builder.task,
            messages=builder.conversations.get(agent, builder.messages),
            turns=played,
            status=status,
            env=driver.env,
            agent=agent,
        )
        scores = await rubric.scores(view)
    of_turns = {
        name: [rubric.weights[name] * value for value in score.turns]
        for name, score in scores.items()
        if score.turns
    }
    builder.weigh_turn_rewards(agent, of_turns, spec.step_reward_weight)
    rewards = {name: score.value for name, score in scores.items()}
    reward = rubric.total(
        rewards, step_reward=step_reward, step_weight=spec.step_reward_weight
    )
    if any(turn.rewards for turn in played):
        rewards["step"] = step_reward
    reasons = {name: score.why for name, score in scores.items() if score.why is not None}
    return Seat(train, reward, rewards), reasons


async def _clean_up(turns: TurnGenerator, driver: EpisodeDriver) -> str:
    """Releases the engine's sessions, then closes the driver with its tools, sandbox or program.

    Returns:
        The problems, which are stored with the trajectory and change nothing else of it.
    """
    problems = []
    for what, ending in (("engine.release", turns.release), ("env.close", driver.close)):
        try:
            async with asyncio.timeout(turns.context.spec.cleanup_s):
                problems.append(await ending())
        except (AgentRLError, TimeoutError) as error:
            problems.append(f"{what}: {str(error) or 'not done within cleanup_s'}")
    return "; ".join(problem for problem in problems if problem)
