"""What tools and environments are told of whose episode it is: a name that no other episode of the
run has.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.envs import AsyncEnv, Env, EnvSpec
from agentrl.errors import SandboxError
from agentrl.rollouts import EpisodeRunner, GroupRequest
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
        return StepResult(Observation((AGAIN,)), terminated=True, info={"mine": self.episode_id})


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
