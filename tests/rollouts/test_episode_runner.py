"""Many episodes in one loop: groups, retries, permits, cancellation, and an end that leaves
nothing.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import Env, EnvSpec, EpisodeView, ToolEnv
from agentrl.errors import ConfigError, EngineError
from agentrl.rollouts import GroupRequest, StagePermits
from agentrl.sandbox import SandboxSpec
from agentrl.tools import PythonTool
from agentrl.types import Action, Message, Observation, SamplingParams, StepResult, Task
from tests.kit.waiting import DEADLINE_S, gather, until
from tests.rollouts.bytewise import (
    MODEL_VOCAB,
    TASK,
    add,
    call,
    rollout_spec,
    say,
    scripted,
)
from tests.rollouts.conftest import Open

NEXT: Message = {"role": "user", "content": "go on"}


class Noted(Env):
    """Goes on for ever, and notes when it begins and ends."""

    def __init__(self, task: Task, notes: list[str]) -> None:
        self.notes = notes
        self.task = task

    async def reset(self, *, seed: int) -> Observation:
        self.notes.append("begun")
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        return StepResult(Observation((NEXT,)))

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.notes.append("closed")


def test_a_group_comes_back_whole_and_in_order(opened: Open) -> None:
    runner = opened(scripted(lambda request: say(request.session_id)))
    runner.submit([GroupRequest(3, TASK, 4)])
    (outcome,) = gather(runner.collect)
    assert [trajectory.id for trajectory in outcome.group.trajectories] == [
        "3-0-0",
        "3-1-0",
        "3-2-0",
        "3-3-0",
    ]
    assert [t.turns[0].text for t in outcome.group.trajectories] == [
        f"train/3-{n}-0" for n in range(4)
    ]
    assert outcome.retried == ()


def test_an_attempt_that_the_engine_failed_is_made_again_from_the_same_seeds(
    opened: Open,
) -> None:
    engine = scripted([say("x")], failures={0: EngineError("away")})
    runner = opened(engine)
    runner.submit([GroupRequest(3, TASK, 1)])
    (outcome,) = gather(runner.collect)
    assert [(t.id, str(t.status)) for t in outcome.retried] == [("3-0-0", "failed(engine)")]
    assert [(t.id, str(t.status)) for t in outcome.group.trajectories] == [
        ("3-0-1", "terminated")
    ]
    assert engine.requests[0].seed == engine.requests[1].seed


def test_each_episode_tells_what_it_waits_for(opened: Open) -> None:
    waits = {name: threading.Event() for name in ("reset", "step", "reward")}
    went: dict[str, threading.Event] = {name: threading.Event() for name in waits}

    def held(at: str) -> None:
        went[at].set()
        assert waits[at].wait(DEADLINE_S)

    class Held(ToolEnv):
        async def reset(self, *, seed: int) -> Observation:
            await asyncio.to_thread(held, "reset")
            return await super().reset(seed=seed)

        async def step(self, action: Action) -> StepResult:
            if action.tool_calls:
                await asyncio.to_thread(held, "step")
            return await super().step(action)

    async def reward(view: EpisodeView) -> float:
        await asyncio.to_thread(held, "reward")
        return 1.0

    script = [say(call("add", a=1, b=2)), say("3")]
    env = EnvSpec(Held, kwargs={"tools": [add], "describe_tools_in_prompt": False})
    runner = opened(scripted(script), env=env, reward=reward)
    assert runner.longest() == []
    runner.submit([GroupRequest(3, TASK, 1)])
    told = []
    for at in waits:
        assert went[at].wait(DEADLINE_S)
        (now,) = runner.longest()
        told.append((now["episode"], now["turns"], now["waits_for"]))
        waits[at].set()
    assert told == [
        ("3-0-0", 0, "the environment's reset"),
        ("3-0-0", 1, "tool add"),
        ("3-0-0", 2, "the reward"),
    ]
    gather(runner.collect)
    assert runner.longest() == []


@pytest.mark.parametrize("phase", ["reset", "reward", "close", "release"])
def test_an_episode_that_never_ends_fails_by_its_bound_and_leaves_its_group(
    opened: Open, phase: str
) -> None:
    class Endless(ToolEnv):
        """Swallows every deadline of its own: only the bound of all that it does is left."""

        async def reset(self, *, seed: int) -> Observation:
            await hang("reset", self.task)
            return await super().reset(seed=seed)

        async def close(self) -> None:
            await hang("close", self.task)

    async def hang(at: str, task: Task) -> None:
        if (at, task.id) == (phase, "endless"):
            await asyncio.Event().wait()

    async def reward(view: EpisodeView) -> float:
        await hang("reward", view.task)
        return 1.0

    class Keeps(ScriptedEngine):
        async def release(self, session_id: str) -> None:
            if phase == "release" and session_id.startswith("train/0-"):
                await asyncio.Event().wait()

    runner = opened(
        Keeps(lambda request: say("x"), vocab_size=MODEL_VOCAB),
        env=EnvSpec(Endless),
        reward=reward,
        cleanup_s=0.1 if phase in ("close", "release") else 10.0,
        max_retries=50,
        episode_timeout_s=0.1,
        turn_timeout_s=0.1,
        total_timeout_s=0.5,
    )
    runner.submit(
        [
            GroupRequest(n, Task(name, TASK.messages), 1)
            for n, name in enumerate(("endless", "fine"))
        ]
    )
    ended = {
        o.request.group_index: o.group.trajectories[0] for o in gather(runner.collect, 2)
    }
    assert ended[1].status.finished
    told = (
        str(ended[0].status),
        ended[0].status.detail,
        ended[0].info.get("cleanup_error", ""),
    )
    if phase in ("close", "release"):
        assert "not done within cleanup_s" in told[2]
    else:
        assert told[0] == "failed(env)"
        assert told[1].startswith("the episode took more than total_timeout_s=0.5")


def test_a_bound_below_that_of_the_episode_itself_is_refused() -> None:
    least = "EpisodeSettings.total_timeout_s must be more than episode_timeout_s=60"
    told = rf"{least} .* got 60; raise"
    with pytest.raises(ConfigError, match=told):
        rollout_spec(episode_timeout_s=60.0, total_timeout_s=60.0)


class Faulty(Env):
    """Raises at its first step, but for the task that is fine."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    def step(self, action: Action) -> StepResult:
        if self.task.id != "fine":
            raise KeyError(f"the map of {self.task.id}")
        return StepResult(Observation(), terminated=True)


RAISED_AT = Faulty.step.__code__.co_firstlineno + 2


@pytest.mark.parametrize("running", [1, 8])
def test_a_fault_that_every_attempt_so_far_shares_is_not_retried(
    opened: Open, running: int
) -> None:
    permits = StagePermits(running=running)
    engine = scripted(lambda request: say("x"))
    runner = opened(engine, env=EnvSpec(Faulty), max_retries=2, permits=permits)
    tasks = [Task(name, TASK.messages) for name in ("a", "b")]
    runner.submit([GroupRequest(n, task, 4) for n, task in enumerate(tasks)])
    outcomes = gather(runner.collect, 2)
    ended = [t for outcome in outcomes for t in outcome.group.trajectories]
    assert {t.info["raised_at"] for t in ended} == {f"{__file__}:{RAISED_AT}"}
    # three were retried at most before the fourth told that it is everybody's fault
    assert sum(len(outcome.retried) for outcome in outcomes) <= 3


def test_a_fault_is_retried_once_an_episode_went_well(opened: Open) -> None:
    runner = opened(scripted(lambda request: say("x")), env=EnvSpec(Faulty), max_retries=1)
    runner.submit([GroupRequest(0, Task("fine", TASK.messages), 1)])
    gather(runner.collect)
    runner.submit([GroupRequest(1, TASK, 8)])
    (outcome,) = gather(runner.collect)
    assert len(outcome.retried) == 8
    # again after the same actions: the policy's doing
    assert {str(t.status) for t in outcome.group.trajectories} == {
        "truncated(env_exception)"
    }


def test_a_retry_is_told_with_the_users_file_and_line(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    runner = opened(scripted(lambda request: say("x")), env=EnvSpec(Faulty), max_retries=1)
    runner.submit([GroupRequest(3, TASK, 1)])
    gather(runner.collect)
    assert [record.getMessage() for record in caplog.records] == [
        "episode 3-0-0 failed (env) and is retried: "
        f"Faulty.step raised KeyError: 'the map of t' ({__file__}:{RAISED_AT})"
    ]


def test_after_its_retries_an_attempt_is_failed(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    runner = opened(
        scripted([say("x")], failures={n: EngineError("away") for n in range(9)}),
        max_retries=2,
    )
    runner.submit([GroupRequest(3, TASK, 1)])
    (outcome,) = gather(runner.collect)
    assert [(t.id, str(t.status)) for t in outcome.group.trajectories] == [
        ("3-0-2", "failed(engine)")
    ]
    assert [t.id for t in outcome.retried] == ["3-0-0", "3-0-1"]
    logged = [vars(record) for record in caplog.records]
    assert [
        (row["event"], row["trajectory_id"], row["retries_left"]) for row in logged
    ] == [
        ("episode_retried", "3-0-0", 2),
        ("episode_retried", "3-0-1", 1),
    ]
    assert outcome.group.finished == ()


def test_a_failure_for_good_is_not_retried(opened: Open) -> None:
    runner = opened(scripted([say("x")]), max_prompt_tokens=2)
    runner.submit([GroupRequest(3, TASK, 1)])
    (outcome,) = gather(runner.collect)
    assert ([t.id for t in outcome.group.trajectories], outcome.retried) == (["3-0-0"], ())


def test_an_environment_that_raises_twice_alike_is_truncated_and_trained(
    opened: Open,
) -> None:
    class Breaks(Noted):
        async def step(self, action: Action) -> StepResult:
            raise ValueError(action.text)

    runner = opened(scripted([say("rm -rf")]), env=EnvSpec(Breaks, kwargs={"notes": []}))
    runner.submit([GroupRequest(3, TASK, 1)])
    (outcome,) = gather(runner.collect)
    (trajectory,) = outcome.group.finished
    assert (trajectory.id, str(trajectory.status), trajectory.reward) == (
        "3-0-1",
        "truncated(env_exception)",
        6.0,
    )


def test_a_failing_rollout_leaves_its_group_with_the_others_finished(opened: Open) -> None:
    def script(request: Any) -> list[int]:
        if "-1-" in request.session_id:
            raise EngineError("not this one", retryable=False)
        return say("x")

    runner = opened(scripted(script))
    runner.submit([GroupRequest(3, TASK, 3)])
    (outcome,) = gather(runner.collect)
    assert [str(t.status) for t in outcome.group.trajectories] == [
        "terminated",
        "failed(engine)",
        "terminated",
    ]
    assert [t.rollout_index for t in outcome.group.finished] == [0, 2]


def test_episodes_in_flight_are_bounded_by_their_permits(opened: Open) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    class Counted(Noted):
        async def reset(self, *, seed: int) -> Observation:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            return await super().reset(seed=seed)

        async def step(self, action: Action) -> StepResult:
            nonlocal running
            while most < 3:  # the first ones stay until three play at once
                await asyncio.sleep(0.001)
            with lock:
                running -= 1
            return StepResult(Observation(), terminated=True)

    permits = StagePermits(preparing=2, running=3, scoring=1)
    runner = opened(
        scripted([say("x")]), env=EnvSpec(Counted, kwargs={"notes": []}), permits=permits
    )
    runner.submit([GroupRequest(group_index, TASK, 4) for group_index in range(4)])
    gather(runner.collect, 4)
    assert most == 3


def test_the_scoring_of_episodes_is_bounded_too(opened: Open) -> None:
    scoring, most = 0, 0

    async def judge(view: object) -> float:
        nonlocal scoring, most
        scoring += 1
        most = max(most, scoring)
        await asyncio.sleep(0.001)
        scoring -= 1
        return 0.0

    runner = opened(scripted([say("x")]), reward=judge, permits=StagePermits(scoring=2))
    runner.submit([GroupRequest(0, TASK, 8)])
    gather(runner.collect)
    assert most == 2


def test_a_cancelled_group_comes_back_cancelled_and_cleaned_up(opened: Open) -> None:
    notes: list[str] = []
    engine = scripted([say("x")] * 2, latency=lambda request: asyncio.Event().wait())
    runner = opened(engine, env=EnvSpec(Noted, kwargs={"notes": notes}))
    runner.submit([GroupRequest(3, TASK, 3), GroupRequest(4, TASK, 1)])
    until(lambda: engine.health().running == 4)
    runner.cancel([3])
    runner.cancel([3])  # a second time does not cut the cleaning up short
    (outcome,) = gather(runner.collect)
    assert [str(t.status) for t in outcome.group.trajectories] == [
        "cancelled(cancelled)"
    ] * 3
    assert outcome.group.finished == ()
    assert notes == ["begun"] * 4 + ["closed"] * 3
    assert engine.health().running == 1


def test_only_the_group_of_that_label_is_cancelled(opened: Open) -> None:
    engine = scripted([say("x")], latency=lambda request: asyncio.Event().wait())
    runner = opened(engine)
    runner.submit(
        [GroupRequest(3, TASK, 1), GroupRequest(3, TASK, 1, "eval", "code/after")]
    )
    until(lambda: engine.health().running == 2)
    runner.cancel([3], label="code/after")
    (outcome,) = gather(runner.collect)
    assert outcome.request.label == "code/after"


@pytest.mark.invariant
def test_close_cleans_up_what_runs(opened: Open) -> None:
    notes: list[str] = []
    engine = scripted([say("x")], latency=lambda request: asyncio.Event().wait())
    runner = opened(engine, env=EnvSpec(Noted, kwargs={"notes": notes}))
    runner.submit([GroupRequest(group_index, TASK, 3) for group_index in range(2)])
    until(lambda: engine.health().running == 6)
    runner.cancel([0])
    runner.close()
    assert notes == ["begun"] * 6 + ["closed"] * 6
    assert (engine.health().running, engine.health().kv_tokens) == (0, 0)
    assert not any(thread.name == "episodes" for thread in threading.enumerate())


def test_a_second_close_does_nothing(opened: Open) -> None:
    runner = opened(scripted([say("x")]))
    runner.close()
    runner.close()


def test_a_fault_of_ours_outside_of_an_episode_surfaces_from_collect(opened: Open) -> None:
    runner = opened(scripted([say("x")]))
    wrong: Any = "no sampling"
    runner.submit([GroupRequest(3, TASK, 1, sampling=wrong, greedy_baseline=True)])
    with pytest.raises(EngineError, match=r"the episode runner broke: .*'greedy'"):
        gather(runner.collect)


def test_a_request_may_bring_its_own_sampling_and_environment(opened: Open) -> None:
    notes: list[str] = []
    engine = scripted([say("x")] * 9)
    runner = opened(engine, max_turns=2)
    own = EnvSpec(Noted, kwargs={"notes": notes})
    greedy = SamplingParams(5, temperature=0.0)
    runner.submit([GroupRequest(0, TASK, 1, "eval", "code/now", sampling=greedy, env=own)])
    (outcome,) = gather(runner.collect)
    (trajectory,) = outcome.group.trajectories
    assert (trajectory.id, trajectory.purpose, len(trajectory.turns)) == (
        "code/now/0-0-0",
        "eval",
        2,
    )
    assert {request.sampling.temperature for request in engine.requests} == {0.0}


async def test_a_group_runs_in_the_callers_own_loop(opened: Open) -> None:
    outcome = await opened(scripted([say("x")])).run_group(GroupRequest(3, TASK, 2))
    assert [str(t.status) for t in outcome.group.trajectories] == ["terminated"] * 2


def in_sandbox() -> dict[str, Any]:
    """Settings of episodes with a Python tool, of which one at a time has a sandbox."""
    tools = [PythonTool(deadline_s=60.0)]
    kwargs = {"tools": tools, "describe_tools_in_prompt": False}
    env = EnvSpec(ToolEnv, kwargs=kwargs, sandbox=SandboxSpec(backend="unsafe"))
    return {"env": env, "permits": StagePermits(sandboxes=1)}


def test_a_sandbox_is_lent_to_few_episodes_and_comes_back(opened: Open) -> None:
    runner = opened(
        scripted([say(call("python", code="print(6*7)")), say("42")]), **in_sandbox()
    )
    runner.submit([GroupRequest(3, TASK, 3)])
    (outcome,) = gather(runner.collect)
    results = [t.turns[0].calls[0].result for t in outcome.group.trajectories]
    assert [result.content.strip() for result in results if result is not None] == [
        "42"
    ] * 3
    assert [str(t.status) for t in outcome.group.trajectories] == ["terminated"] * 3


def test_the_sandbox_of_a_cancelled_episode_comes_back_too(
    opened: Open, tmp_path: Path
) -> None:
    mark = tmp_path / "running"
    endless = f"open({str(mark)!r}, 'w').close()\nwhile True: pass"

    def script(request: Any) -> list[int]:
        if request.request_id.endswith("/1"):
            return say("done")
        return say(
            call("python", code=endless if "/0-" in request.session_id else "print(1)")
        )

    runner = opened(scripted(script), **in_sandbox())
    runner.submit([GroupRequest(0, TASK, 1)])
    until(mark.exists)
    runner.cancel([0])
    runner.submit([GroupRequest(1, TASK, 1)])
    outcomes = sorted(
        gather(runner.collect, 2), key=lambda outcome: outcome.request.group_index
    )
    assert [str(o.group.trajectories[0].status) for o in outcomes] == [
        "cancelled(cancelled)",
        "terminated",
    ]


def test_the_end_of_a_runner_ends_what_its_rewards_hold(opened: Open) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def close() -> None:
        loops.append(asyncio.get_running_loop())

    def reward(view: EpisodeView) -> float:
        return 1.0

    reward.__dict__["close_connections"] = close
    runner = opened(scripted([say("ok")]), reward=reward)
    runner.submit([GroupRequest(0, TASK, 1)])
    gather(runner.collect)
    assert loops == []
    runner.close()
    assert loops == [runner._loop]
