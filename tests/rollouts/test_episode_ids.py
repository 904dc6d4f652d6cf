"""What tools and environments are told of whose episode it is: a name that no other episode of the
run has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agentrl.agent_server import AgentProgramSpec
from agentrl.envs import AsyncEnv, Env, EnvSpec
from agentrl.errors import SandboxError
from agentrl.rollouts import EpisodeRunner, GroupRequest, cancelled_outcome
from agentrl.tools import ToolContext, tool
from agentrl.types import Action, Message, Observation, StepResult, Task
from tests.rollouts.bytewise import TASK, call, rollout_spec, say, scripted

SEEN: list[str] = []
AGAIN: Message = {"role": "user", "content": "again"}


@tool
def note(context: ToolContext) -> str:
    """Notes whose call it is; the first call of all fails by no doing of the policy."""
    SEEN.append(context.episode_id)
    if len(SEEN) == 1:
        raise SandboxError("lost")
    return context.episode_id


class Told(Env):
    """Says whose episode it is, and knows it before the opening."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": self.episode_id},))

    def step(self, action: Action) -> StepResult:
        return StepResult(
            Observation((AGAIN,)), terminated=True, info={"mine": self.episode_id}
        )


@pytest.fixture
def runner() -> Iterator[EpisodeRunner]:
    SEEN.clear()
    engine = scripted(
        lambda request: say(call("note") if request.request_id.endswith("/0") else "done")
    )
    opened = EpisodeRunner(rollout_spec(tools=[note], max_response_tokens=1500), engine)
    yield opened
    opened.close()


async def test_no_two_episodes_have_one_id(runner: EpisodeRunner) -> None:
    outcomes = [
        await runner.run_group(request)
        for request in (
            GroupRequest(0, TASK, 3),
            GroupRequest(12, TASK, 2),  # the same task in the next epoch
            GroupRequest(0, TASK, 2, "eval", "sums/before/sampled"),
        )
    ]
    played = [
        trajectory
        for outcome in outcomes
        for trajectory in (*outcome.retried, *outcome.group.trajectories)
    ]
    assert len(played) == 8  # one was made again
    assert sorted(SEEN) == sorted(trajectory.id for trajectory in played)
    assert len(set(SEEN)) == 8


async def test_an_environment_knows_its_own_and_goes_on_under_another(
    runner: EpisodeRunner,
) -> None:
    outcome = await runner.run_group(GroupRequest(3, TASK, 2, env=EnvSpec(Told)))
    for trajectory in outcome.group.trajectories:
        assert (
            trajectory.turns[0].observed[0]["content"]
            == trajectory.turns[0].info["mine"]
            == trajectory.id
        )

    before = EnvSpec(Told).build(TASK, episode_id="3-0-0")
    after = AsyncEnv(EnvSpec(Told).build(TASK, episode_id="3-0-1"))
    await after.restore(await AsyncEnv(before).save())
    assert after.env.episode_id == "3-0-1"


async def test_the_stage_is_in_an_evaluations_id_and_in_no_seed() -> None:
    engine = scripted(lambda request: say("done"))
    seen: dict[str, list[int]] = {}
    for stage in ("", "warmup", "rl"):
        runner = EpisodeRunner(rollout_spec(), engine)
        requests = (
            GroupRequest(0, TASK, 1, "eval", "sums/before/sampled", stage=stage),
            GroupRequest(4, TASK, 1, stage=stage),
        )
        first = len(engine.requests)
        played = [
            (await runner.run_group(request)).group.trajectories[0] for request in requests
        ]
        runner.close()
        place = f"{stage}/" if stage else ""
        assert [one.id for one in played] == [f"{place}sums/before/sampled/0-0-0", "4-0-0"]
        assert [one.label for one in played] == ["sums/before/sampled", ""]
        assert [one.stage for one in played] == [stage, stage]
        assert [request.key(0).trajectory_id for request in requests] == [
            one.id for one in played
        ]
        seen[stage] = [request.seed for request in engine.requests[first:]]
    assert seen[""] == seen["warmup"] == seen["rl"]


async def test_a_trajectory_says_where_when_and_in_which_group_it_was_played(
    runner: EpisodeRunner,
) -> None:
    before = time.time()
    outcome = await runner.run_group(GroupRequest(1, TASK, 2, oversample=1))
    after = time.time()
    for one in outcome.group.trajectories:
        assert (one.env, one.group_size) == ("ToolEnv", 2)
        assert before <= one.started_at <= one.ended_at <= after + 0.01
    other = await runner.run_group(GroupRequest(2, TASK, 1, env=EnvSpec(Told)))
    assert other.group.trajectories[0].env == "Told"
    never = cancelled_outcome(GroupRequest(3, TASK, 4, stage="rl")).group.trajectories[0]
    assert (never.stage, never.group_size) == ("rl", 4)


@pytest.mark.parametrize(
    ("factory", "name"),
    [("envs/maze.py:Maze", "Maze"), ("pkg.envs:Shop.build", "build"), (Told, "Told")],
)
def test_an_environment_is_named_by_what_makes_it(factory: object, name: str) -> None:
    assert EnvSpec(factory).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "-u", "agents/shop.py", "--fast"), "shop.py"),
        (("/usr/bin/agent", "--fast"), "agent"),
        (("python3.11", "-m", "my.agent"), "my.agent"),
    ],
)
def test_an_agent_program_is_named_by_its_file(command: tuple[str, ...], name: str) -> None:
    assert AgentProgramSpec(command).name == name
