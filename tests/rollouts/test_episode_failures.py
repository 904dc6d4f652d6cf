"""Whose fault: what the policy spent is truncated and rewarded, what we broke is failed and never
0.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import Env, EnvSpec, EpisodeView
from agentrl.errors import EngineError, RewardError, ServerError
from agentrl.rollouts import EpisodeKey, PhaseSemaphores, run_episode
from agentrl.tools import tool
from agentrl.types import Action, Message, Observation, StepResult, Task
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import (
    KEY,
    MODEL_VOCAB,
    TASK,
    call,
    context_of,
    length_reward,
    play,
    rollout_spec,
    say,
    scripted,
)

NEXT: Message = {"role": "user", "content": "go on"}


class Talk(Env):
    """Goes on for ever; notes its end."""

    closed: list[str]

    def __init__(self, task: Task, closed: list[str] | None = None) -> None:
        self.task = task
        self.closed = [] if closed is None else closed

    async def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        return StepResult(Observation((NEXT,)))

    async def close(self) -> None:
        self.closed.append(self.task.id)


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


def hangs_at(turn: int) -> Any:
    """A latency that ends only for turns before ``turn``."""

    async def latency(request: Any) -> None:
        if int(request.request_id.rpartition("/")[2]) >= turn:
            await never()

    return latency


async def test_a_turn_that_overruns_truncates_and_keeps_the_finished_turns() -> None:
    engine = scripted([say("one"), say("two")], latency=hangs_at(1))
    trajectory = await play(engine, env=EnvSpec(Talk), turn_timeout_s=0.3)
    assert (str(trajectory.status), [turn.text for turn in trajectory.turns]) == (
        "truncated(turn_timeout)",
        ["one"],
    )
    assert trajectory.reward == 3.0


async def test_an_episode_that_overruns_truncates_and_keeps_the_finished_turns() -> None:
    engine = scripted([say("one"), say("two")], latency=hangs_at(1))
    trajectory = await play(engine, env=EnvSpec(Talk), episode_timeout_s=0.5)
    assert (str(trajectory.status), len(trajectory.turns), trajectory.reward) == (
        "truncated(episode_timeout)",
        1,
        3.0,
    )


async def test_the_request_of_a_turn_that_overran_is_taken_back() -> None:
    engine = scripted([say("one")], latency=hangs_at(0))
    await play(engine, env=EnvSpec(Talk), turn_timeout_s=0.1)
    assert (engine.health().running, engine.health().kv_tokens) == (0, 0)


async def test_a_step_that_hangs_counts_its_turn_and_truncates() -> None:
    class Stuck(Talk):
        async def step(self, action: Action) -> StepResult:
            await never()
            raise AssertionError

    trajectory = await play([say("one")], env=EnvSpec(Stuck), turn_timeout_s=0.1)
    assert (str(trajectory.status), len(trajectory.turns), trajectory.reward) == (
        "truncated(turn_timeout)",
        1,
        3.0,
    )


async def test_a_deadline_spent_before_any_token_is_no_doing_of_the_policy() -> None:
    trajectory = await play(scripted([say("x")], latency=never), turn_timeout_s=0.1)
    assert (str(trajectory.status), trajectory.reward) == ("failed(engine)", None)
    assert (
        trajectory.status.detail
        == "turn_timeout while waiting for the engine's first completion"
    )


async def test_a_deadline_spent_by_the_environment_before_any_turn_is_named_for_it() -> (
    None
):
    class Asleep(Talk):
        async def reset(self, *, seed: int) -> Observation:
            await never()
            raise AssertionError

    trajectory = await play([say("one")], env=EnvSpec(Asleep), episode_timeout_s=0.1)
    assert (str(trajectory.status), trajectory.info["retryable"]) == ("failed(env)", True)
    assert (
        trajectory.status.detail
        == "episode_timeout before the policy was asked for its first turn"
    )


async def test_the_wait_for_others_who_prepare_counts_against_no_deadline() -> None:
    permits = PhaseSemaphores(2, 1, 1)
    spec = rollout_spec(env=EnvSpec(Talk), episode_timeout_s=1.0, max_turns=1)
    parts = context_of(spec, scripted([say("end")]))
    async with permits.preparing:
        waiting = asyncio.ensure_future(run_episode(parts, TASK, KEY, permits=permits))
        await asyncio.wait([waiting], timeout=1.3)
    assert str((await waiting).status) == "truncated(max_turns)"


async def test_an_engine_that_fails_is_a_failure_that_may_be_retried() -> None:
    engine = scripted([say("x")], failures={0: EngineError("the server went away")})
    trajectory = await play(engine)
    assert (str(trajectory.status), trajectory.status.detail) == (
        "failed(engine)",
        "the server went away",
    )
    assert (trajectory.info["retryable"], trajectory.reward) == (True, None)


async def test_an_engine_that_raises_anything_else_is_such_a_failure_too() -> None:
    engine = scripted([say("x")], failures={0: ZeroDivisionError("by none")})
    trajectory = await play(engine)
    assert str(trajectory.status) == "failed(engine)"
    assert trajectory.status.detail.startswith(
        "the engine raised ZeroDivisionError: by none"
    )
    assert (trajectory.info["retryable"], trajectory.reward) == (True, None)


async def test_an_engine_that_raises_at_release_spoils_no_episode() -> None:
    class Forgetful(ScriptedEngine):
        async def release(self, session_id: str) -> None:
            raise KeyError(session_id)

    trajectory = await play(Forgetful([say("x")], vocab_size=MODEL_VOCAB))
    assert str(trajectory.status) == "terminated"
    assert "the engine raised KeyError" in trajectory.info["cleanup_error"]


async def test_an_engine_that_refuses_for_good_is_not_asked_again() -> None:
    engine = scripted([say("x")], failures={0: EngineError("never", retryable=False)})
    assert (await play(engine)).info["retryable"] is False


async def test_an_aborted_request_cancels_the_episode() -> None:
    started = asyncio.Event()

    async def waits(request: Any) -> None:
        started.set()
        await never()

    engine = scripted([say("x")], latency=waits)
    episode = asyncio.ensure_future(play(engine))
    await started.wait()
    await engine.abort([engine.requests[0].request_id])
    trajectory = await episode
    assert (str(trajectory.status), trajectory.reward) == ("cancelled(aborted)", None)


async def test_a_full_context_is_the_policys_doing_on_its_own_server_alone() -> None:
    full = ServerError("too long", retryable=False, code="context_length_exceeded")

    class AsksAServer(Talk):
        async def step(self, action: Action) -> StepResult:
            raise full

    others = await play([say("one")], env=EnvSpec(AsksAServer))
    assert (str(others.status), others.reward) == ("failed(engine)", None)
    own = await play(scripted([say("one")], failures={1: full}), env=EnvSpec(Talk))
    assert (str(own.status), own.reward) == ("truncated(context_tokens)", 3.0)


class Breaks(Talk):
    """Raises at its second step."""

    steps = 0

    async def step(self, action: Action) -> StepResult:
        self.steps += 1
        if self.steps == 2:
            raise ZeroDivisionError("by nought")
        return await super().step(action)


async def test_an_environment_that_raises_is_a_failure_at_first() -> None:
    trajectory = await play([say("one"), say("two")], env=EnvSpec(Breaks))
    assert (str(trajectory.status), trajectory.reward, trajectory.info["retryable"]) == (
        "failed(env)",
        None,
        True,
    )
    assert "Breaks.step raised ZeroDivisionError: by nought" in trajectory.status.detail


async def test_an_environment_that_raises_again_after_the_same_actions_is_the_policys_doing() -> (
    None
):
    script = [say("one"), say("two")]
    first = await play(script, env=EnvSpec(Breaks))
    again = await play(
        script, env=EnvSpec(Breaks), key=replace(KEY, attempt=1), previous=first
    )
    assert (str(again.status), again.reward) == ("truncated(env_exception)", 3.0)
    assert [turn.text for turn in again.turns] == ["one", "two"]


async def test_an_environment_that_raises_after_other_actions_stays_a_failure() -> None:
    first = await play([say("one"), say("two")], env=EnvSpec(Breaks))
    again = await play([say("one"), say("three")], env=EnvSpec(Breaks), previous=first)
    assert str(again.status) == "failed(env)"


async def test_an_environment_that_raises_in_reset_is_never_the_policys_doing() -> None:
    class Unready(Talk):
        async def reset(self, *, seed: int) -> Observation:
            raise OSError("no display")

    first = await play([say("x")], env=EnvSpec(Unready))
    again = await play([say("x")], env=EnvSpec(Unready), previous=first)
    assert (str(first.status), str(again.status)) == ("failed(env)", "failed(env)")


async def test_a_rubric_that_raises_is_a_failure_and_never_a_reward_of_0() -> None:
    def broken(view: EpisodeView) -> float:
        raise KeyError("answer")

    trajectory = await play([say("x")], reward=broken)
    assert (str(trajectory.status), trajectory.reward, dict(trajectory.rewards)) == (
        "failed(reward)",
        None,
        {},
    )
    assert "reward 'broken' of task 't' raised KeyError" in trajectory.status.detail


async def test_a_reward_that_is_no_number_is_a_failure() -> None:
    trajectory = await play([say("x")], reward=lambda view: float("nan"))
    assert str(trajectory.status) == "failed(reward)"


async def test_a_judge_that_fails_is_a_failure() -> None:
    async def judge(view: EpisodeView) -> float:
        raise RewardError("the judge is away")

    assert str((await play([say("x")], reward=judge)).status) == "failed(reward)"


async def test_the_rubric_sees_the_environment_before_its_end() -> None:
    closed: list[str] = []
    seen: list[int] = []

    def looks(view: EpisodeView) -> float:
        seen.append(len(closed))
        return 0.0

    await play(
        [say("x")], env=EnvSpec(Talk, kwargs={"closed": closed}), reward=looks, max_turns=1
    )
    assert (seen, closed) == ([0], ["t"])


class Failing(Talk):
    async def close(self) -> None:
        raise RuntimeError("the door is stuck")


async def test_what_went_wrong_in_cleaning_up_is_kept_and_the_reward_stands() -> None:
    trajectory = await play([say("one")], env=EnvSpec(Failing), max_turns=1)
    assert (str(trajectory.status), trajectory.reward) == ("truncated(max_turns)", 3.0)
    assert "env.close" in trajectory.info["cleanup_error"]
    assert "the door is stuck" in trajectory.info["cleanup_error"]


async def test_an_environment_that_does_not_close_is_left_at_its_deadline() -> None:
    class Stays(Talk):
        async def close(self) -> None:
            await never()

    trajectory = await play([say("one")], env=EnvSpec(Stays), max_turns=1, cleanup_s=0.05)
    assert "not done within cleanup_s" in trajectory.info["cleanup_error"]


async def test_an_engine_that_does_not_release_leaves_no_environment_behind() -> None:
    closed: list[str] = []
    engine = scripted([say("one")])

    async def refuses(session_id: str) -> None:
        raise EngineError("gone")

    engine.release = refuses  # type: ignore[method-assign]
    trajectory = await play(
        engine, env=EnvSpec(Talk, kwargs={"closed": closed}), max_turns=1
    )
    assert (closed, trajectory.info["cleanup_error"]) == (["t"], "engine.release: gone")


@pytest.mark.invariant
@pytest.mark.parametrize("ends", ["finished", "failed", "cancelled"])
async def test_nothing_of_an_episode_lives_after_its_end(ends: str) -> None:
    closed: list[str] = []
    settings: dict[str, Any] = {
        "env": EnvSpec(Talk, kwargs={"closed": closed}),
        "max_turns": 2,
    }
    if ends == "failed":
        engine = scripted([say("one"), say("two")], failures={1: EngineError("away")})
    else:
        engine = scripted(
            [say("one"), say("two")], latency=hangs_at(1) if ends == "cancelled" else None
        )
    episode = asyncio.ensure_future(play(engine, **settings))
    if ends == "cancelled":
        while len(engine.requests) < 2:
            await asyncio.sleep(0.001)
        episode.cancel()
    await asyncio.wait([episode])
    assert episode.cancelled() == (ends == "cancelled")
    assert closed == ["t"]
    assert (
        engine.health().running,
        engine.health().waiting,
        engine.health().kv_tokens,
    ) == (
        0,
        0,
        0,
    )


async def test_a_cancelled_tool_is_cancelled() -> None:
    ended = asyncio.Event()
    running = asyncio.Event()

    @tool
    async def works() -> str:
        """Works for ever."""
        running.set()
        try:
            await never()
        finally:
            ended.set()
        return ""

    episode = asyncio.ensure_future(play([say(call("works"))], tools=[works]))
    await running.wait()
    episode.cancel()
    await asyncio.wait([episode])
    await asyncio.wait_for(ended.wait(), DEADLINE_S)


async def test_seconds_of_each_stage_are_kept() -> None:
    trajectory = await play(
        [say("x")], reward=length_reward, task=TASK, key=EpisodeKey(0, 0)
    )
    assert set(trajectory.timings) == {
        "prepare_s",
        "generate_s",
        "env_s",
        "retokenize_s",
        "score_at_s",
        "score_s",
        "wait_s",
    }
