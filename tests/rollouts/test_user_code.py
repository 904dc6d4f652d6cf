"""The wall around a user's code: every boundary ends as docs/rollouts.md says, whatever is raised
there, from a plain function and from a coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentrl.config.sections import PlacementConfig
from agentrl.controller.cluster.rollout_pool import (
    RolloutPool,
    RolloutWorkerSpec,
    collect_groups,
)
from agentrl.envs import AsyncEnv, Env, EnvSpec, EpisodeView, Rubric
from agentrl.errors import EngineError, RewardError
from agentrl.rollouts import EpisodeRunner, GroupRequest, run_episode
from agentrl.tools import TOOL_THREADS, ToolExecutor, tool
from agentrl.types import (
    Action,
    Observation,
    Status,
    StepResult,
    Task,
    ToolCall,
    Trajectory,
)
from agentrl.types.user_code import wall
from agentrl.types.user_code.wall import EXIT_CODE
from tests.kit.waiting import DEADLINE_S, until
from tests.rollouts.bytewise import (
    KEY,
    TASK,
    call,
    context_of,
    play,
    rollout_spec,
    say,
    scripted,
)
from tests.rollouts.user_code import (
    RAISED,
    ScriptedPlan,
    conformance_spec,
    env_of,
    raising_line,
)

ENDS = {
    "env.init": "failed(env)",
    "env.reset": "failed(env)",
    "env.step": "failed(env)",
    "wrapper": "failed(env)",
    "env.snapshot": "terminated",
    "env.close": "terminated",
    "tool.init": "failed(env)",
    "tool.setup": "failed(tool)",
    "tool.call": "terminated",
    "tool.close": "terminated",
    "resource": "failed(tool)",
    "reward": "failed(reward)",
    "group reward": "failed(reward)",
}
"""How an episode ends whose user code raises at a boundary."""
NOTED = {"env.snapshot": "snapshot_error", "env.close": "cleanup_error"}
NOTED["tool.close"] = "cleanup_error"
EXITS = (
    "SystemExit",
    "KeyboardInterrupt",
    "GeneratorExit",
    "CancelledError",
    "BaseException",
)
CASES = [
    (at, raises, kind) for at in ENDS for raises in RAISED for kind in ("plain", "async")
]

Outcomes = Mapping[tuple[str, str, str], Trajectory]


def requests() -> list[GroupRequest]:
    """An episode of every case."""
    found = []
    for group_index, (at, raises, kind) in enumerate(CASES):
        info = {"at": at, "raises": raises, "kind": kind}
        task = Task(
            f"{at} {raises} {kind}", ({"role": "user", "content": "go"},), info=info
        )
        found.append(GroupRequest(group_index, task, 1, env=env_of(task)))
    return found


def outcomes_of(pool: RolloutPool) -> Outcomes:
    played = collect_groups(pool, requests(), DEADLINE_S)
    ended = [outcome.group.trajectories[0] for outcome in played]
    return dict(zip(CASES, ended, strict=True))


def check_end(trajectory: Trajectory, at: str, raises: str) -> None:
    """The status, the line, and that no exit reads as a success."""
    info = trajectory.info
    expected = ENDS[at]
    if (at, raises) == ("tool.call", "CancelledError"):
        expected = "failed(tool)"
    assert str(trajectory.status) == expected, (trajectory.task.id, trajectory.status)
    if expected.startswith("failed"):
        assert trajectory.reward is None
        assert info["raised_at"] == raising_line()
        assert raising_line() in trajectory.status.detail
        assert info.get("exit_code") == (EXIT_CODE if raises in EXITS else None)
        return
    assert trajectory.reward == 4.0
    if at == "tool.call":
        result = trajectory.turns[0].calls[0].result
        assert result is not None
        assert result.error == "exception"
        assert raising_line() not in result.content  # the policy is told no path
    else:
        assert raising_line() in info[NOTED[at]]


@pytest.fixture(scope="module")
def inline() -> Iterator[Outcomes]:
    runner = EpisodeRunner(conformance_spec(), ScriptedPlan().build())
    try:
        yield outcomes_of(runner)  # type: ignore[arg-type]
    finally:
        runner.close()


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("at", ENDS)
def test_whatever_is_raised_at_a_boundary_ends_there(
    inline: Outcomes, at: str, kind: str
) -> None:
    for raises in RAISED:
        check_end(inline[at, raises, kind], at, raises)


@pytest.mark.slow
def test_the_same_holds_in_rays_workers() -> None:
    import ray

    from agentrl.controller.cluster.ray_cluster import start_ray
    from agentrl.controller.cluster.ray_rollout_pool import rollout_workers

    started = start_ray(2)
    try:
        pool = rollout_workers(PlacementConfig(rollout_workers=1))
        try:
            pool.setup(RolloutWorkerSpec(ScriptedPlan(), conformance_spec()))  # type: ignore[arg-type]
            for (at, raises, _), trajectory in outcomes_of(pool).items():
                check_end(trajectory, at, raises)
            loop_ender = GroupRequest(0, Task("t"), 1, env=EnvSpec(EndsTheLoop))
            (given_up,) = collect_groups(pool, [loop_ender], DEADLINE_S)
            (ended,) = given_up.group.trajectories
            assert str(ended.status) == "cancelled(kills_worker)"
            lost = [str(one) for one in pool.take_failures() if one.event == "worker_lost"]
            assert len(lost) == 3
            cause = re.compile(r"SystemExit: 5 \(.*test_user_code\.py:\d+\)")
            assert all(map(cause.search, lost))
        finally:
            pool.close()
    finally:
        if started:
            ray.shutdown()


class Single(Env):
    """Ends with its first step."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "go"},))

    async def step(self, action: Action) -> StepResult:
        return StepResult(Observation(), terminated=True)


class EndsTheLoop(Single):
    """Exits in a task of its own, where no wall stands: asyncio lets that end the loop."""

    async def step(self, action: Action) -> StepResult:
        async def leave() -> None:
            raise SystemExit(5)

        await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)
        return await super().step(action)


class StopsTheLoop(Single):
    """Stops the loop that it runs on."""

    async def step(self, action: Action) -> StepResult:
        asyncio.get_running_loop().stop()
        return await super().step(action)


class CancelsItself(Single):
    """Cancels the task that it runs in."""

    async def step(self, action: Action) -> StepResult:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return await super().step(action)


@pytest.fixture
def runner() -> Iterator[EpisodeRunner]:
    runner = EpisodeRunner(rollout_spec(), scripted(lambda request: say("x")))
    yield runner
    runner.close()


def collect_two(runner: EpisodeRunner) -> None:
    """What the episode itself comes to may be told before the loop's end is."""
    runner.collect(DEADLINE_S)
    runner.collect(DEADLINE_S)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (EndsTheLoop, r"SystemExit: 5 \(.*test_user_code\.py:\d+\)"),
        (StopsTheLoop, r"RuntimeError: somebody called stop\(\) on its event loop"),
    ],
)
def test_what_ends_the_loop_ends_the_run_with_its_cause(
    runner: EpisodeRunner, env: type[Env], told: str
) -> None:
    runner.submit([GroupRequest(0, Task("t"), 1, env=EnvSpec(env))])
    for _ in range(2):  # whoever asks next is told too
        with pytest.raises(EngineError, match=f"the episode runner broke: {told}"):
            collect_two(runner)
    assert runner.in_flight() is not None  # the loop goes on, and can be closed


def test_an_episode_that_cancels_itself_has_failed_and_is_not_cancelled(
    runner: EpisodeRunner,
) -> None:
    runner.submit([GroupRequest(0, Task("t"), 1, env=EnvSpec(CancelsItself))])
    (outcome,) = runner.collect(DEADLINE_S)
    (trajectory,) = outcome.group.trajectories
    assert str(trajectory.status) == "failed(env)"
    assert "cancelled the task that it ran in" in trajectory.status.detail


async def goes_on() -> None:
    """Swallows every cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def stubborn_reward(view: EpisodeView) -> float:
    await goes_on()
    return 1.0


async def meet_reward() -> None:
    view = EpisodeView(Task("t"), (), (), Status("terminated"))
    with pytest.raises(RewardError, match=r"took longer than 0\.05 s; raise deadline_s"):
        await Rubric([stubborn_reward], deadline_s=0.05).score(view)


async def meet_step() -> None:
    class Stubborn(Single):
        async def step(self, action: Action) -> StepResult:
            await goes_on()
            return await super().step(action)

    env = AsyncEnv(Stubborn(Task("t")))
    await env.reset(seed=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await env.step(Action("", {"role": "assistant", "content": ""}))


async def meet_tool() -> None:
    @tool(deadline_s=0.05)
    async def stubborn_tool() -> str:
        await goes_on()
        return ""

    executor = ToolExecutor([stubborn_tool])
    (record,) = await executor.run([ToolCall("call_0", "stubborn_tool", {})])
    assert record.result is not None
    assert record.result.error == "timeout"
    assert executor.num_abandoned == 1


@pytest.mark.parametrize(
    ("met", "name"),
    [
        (meet_reward, r"stubborn_reward \(.*test_user_code\.py:\d+\)"),
        (meet_step, r"Stubborn\.step \(.*test_user_code\.py:\d+\)"),
        (meet_tool, "tool 'stubborn_tool'"),
    ],
)
async def test_what_swallows_its_cancellation_is_given_up_and_named(
    met: Callable[[], Awaitable[None]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(wall, "GRACE_S", 0.05)
    await met()
    (record,) = [
        one for one in caplog.records if vars(one).get("event") == "user_code_given_up"
    ]
    assert re.match(f".*{name} swallowed its cancellation", record.getMessage())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


def test_a_group_that_the_runner_cancels_is_cancelled_whatever_its_code_does() -> None:
    begun = threading.Event()

    class Waits(Single):
        async def reset(self, *, seed: int) -> Observation:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    runner = EpisodeRunner(rollout_spec(), scripted(lambda request: say("x")))
    try:
        runner.submit([GroupRequest(0, Task("t"), 2, env=EnvSpec(Waits))])
        assert begun.wait(DEADLINE_S)
        runner.cancel([0])
        (outcome,) = runner.collect(DEADLINE_S)
        assert [str(t.status) for t in outcome.group.trajectories] == [
            "cancelled(cancelled)"
        ] * 2
    finally:
        runner.close()


def test_a_call_that_runs_on_after_its_deadline_is_counted_until_it_ends() -> None:
    release = threading.Event()

    @tool(deadline_s=0.05)
    def hangs() -> str:
        """Overruns."""
        release.wait(DEADLINE_S)
        return "late"

    before = TOOL_THREADS.num_abandoned
    runner = EpisodeRunner(
        rollout_spec(tools=[hangs]), scripted([say(call("hangs")), say("end")])
    )
    try:
        runner.submit([GroupRequest(0, TASK, 1)])
        (outcome,) = runner.collect(DEADLINE_S)
        # what other tests left may end meanwhile
        assert outcome.abandoned is not None
        assert outcome.abandoned >= 1
    finally:
        release.set()
        runner.close()
    until(lambda: TOOL_THREADS.num_abandoned <= before)


def test_what_blocks_the_loop_is_named_with_its_line_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", "") == "loop_blocked":
                told.set()

    handler = Told()
    watch = logging.getLogger("agentrl.types.loop_thread")
    watch.addHandler(handler)

    @tool
    async def blocks() -> str:
        """Blocks until the watch has seen it."""
        assert told.wait(DEADLINE_S)
        return "done"

    answers = [say(call("blocks")), say("end")]
    runner = EpisodeRunner(rollout_spec(tools=[blocks]), scripted(answers))
    try:
        for group_index in range(2):
            runner.submit([GroupRequest(group_index, TASK, 1)])
            (outcome,) = runner.collect(DEADLINE_S)
            assert outcome.lag is not None
            if group_index == 0:
                assert outcome.lag.seconds >= 1.0
                assert "blocks (" in outcome.lag.where
                assert f"{__file__}:" in outcome.lag.where
    finally:
        watch.removeHandler(handler)
        runner.close()
    # a busy machine may stop the loop elsewhere too
    told_of = [one for one in caplog.records if getattr(one, "event", "") == "loop_blocked"]
    (record,) = (one for one in told_of if "blocks (" in one.getMessage())
    assert "keeps the event loop of all episodes" in record.getMessage()


class NamesItsState(Single):
    """Its state is a mapping with keys of two kinds, which have no order."""

    async def reset(self, *, seed: int) -> Observation:
        state = {1: "X", "turn": "X"}
        return Observation(({"role": "user", "content": "go"},), info={"state": state})


async def test_a_state_whose_keys_have_no_order_is_named_all_the_same() -> None:
    one, other = [await play([say("x")], env=EnvSpec(NamesItsState)) for _ in range(2)]
    assert str(one.status) == "terminated"
    assert one.turns[0].state_key == other.turns[0].state_key


class OddMessage(dict[str, Any]):
    """A message that cannot be read."""

    def get(self, *_: object) -> Any:
        raise ZeroDivisionError("no message")


class EndsOddly(Single):
    async def step(self, action: Action) -> StepResult:
        odd: Any = OddMessage()
        return StepResult(Observation((odd,)), terminated=True)


async def test_a_last_observation_that_cannot_be_read_is_noted() -> None:
    trajectory = await play([say("x")], env=EnvSpec(EndsOddly))
    assert (str(trajectory.status), trajectory.reward) == ("terminated", 1.0)
    assert "ZeroDivisionError: no message" in trajectory.info["last_observation_error"]


class Silent:
    """A parser that gives nothing."""

    def parse(self, text: str, tools: object = ()) -> Any:
        return None


async def test_a_parser_that_gives_no_message_is_named() -> None:
    context = replace(context_of(rollout_spec(), scripted([say("x")])), parser=Silent())
    trajectory = await run_episode(context, TASK, KEY)
    assert str(trajectory.status) == "failed(tool)"
    assert (
        "the parser Silent must give a ParsedMessage, got None" in trajectory.status.detail
    )


class Falls:
    """A driver that raises where no wall stands."""

    name = "falls"
    env = None

    def driver(self, turns: object) -> Falls:
        return self

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def play(self) -> Status:
        raise LookupError("nobody expects it")

    async def close(self) -> None:
        """Nothing was started."""


async def test_what_no_wall_has_met_ends_its_own_episode() -> None:
    context = context_of(rollout_spec(), scripted([say("x")]))
    trajectory = await run_episode(context, TASK, KEY, env=Falls())
    assert (str(trajectory.status), trajectory.reward) == ("failed(agentrl)", None)
    assert "LookupError: nobody expects it" in trajectory.status.detail
    assert trajectory.info["retryable"]
    assert "in play" in trajectory.info["traceback"]
