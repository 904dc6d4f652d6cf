"""Episodes that run through a publish: they go on with their tokens, and each token keeps the
version that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agentrl.controller.cluster.rollout_pool import RolloutWorkerSpec
from agentrl.engines import PauseMode
from agentrl.rollouts import GroupRequest, make_batch
from agentrl.types import Trajectory, TrajectoryGroup, concat_ids
from tests.controller.tiny import (
    TASKS,
    Cluster,
    engine_spec,
    episodes,
    local_cluster,
    roles,
)
from tests.kit.held_engine import HeldEngine
from tests.kit.waiting import gather
from tests.rollouts.bytewise import END

SIBLINGS = 8
TOKENS = 190

Play = Callable[[PauseMode], list[Trajectory]]


@pytest.fixture
def group(model: Path) -> Iterator[Cluster]:
    cluster = local_cluster()
    rollout = episodes(max_turn_tokens=TOKENS, max_response_tokens=400, context_tokens=500)
    engine = engine_spec(model, context_tokens=500)
    cluster.group.setup(roles(model))
    cluster.pool.setup(RolloutWorkerSpec(engine, rollout))
    yield cluster
    cluster.close()


@pytest.fixture
def play(group: Cluster) -> Play:
    """A group with a publish of version 1 while its tokens are sampled."""

    def run(mode: PauseMode) -> list[Trajectory]:
        held = HeldEngine(group.group.rollouts.engine, SIBLINGS // 2)
        group.pool.submit([GroupRequest(0, TASKS[0], SIBLINGS)])
        held.during(group.publish, 1, mode)
        outcomes = gather(group.pool.collect)
        return list(outcomes[0].group.trajectories)

    return run


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_an_interrupted_call_goes_on_under_the_new_version(
    play: Play, mode: PauseMode
) -> None:
    trajectories = play(mode)
    assert all(trajectory.status.finished for trajectory in trajectories)
    calls = [turn.completion for trajectory in trajectories for turn in trajectory.turns]
    mixed = [
        call for call in calls if {segment.policy_version for segment in call} == {0, 1}
    ]
    assert mixed
    for call in mixed:
        assert [segment.policy_version for segment in call] == [0, 1]
        ids = concat_ids(call)
        # nothing was lost, and nothing sampled twice
        assert ids.size == TOKENS or ids[-1] == END


def test_with_drain_every_call_is_of_one_version(play: Play) -> None:
    calls = [turn.completion for trajectory in play("drain") for turn in trajectory.turns]
    assert {len({segment.policy_version for segment in call}) for call in calls} == {1}


def test_a_batch_knows_the_version_of_each_token_and_masks_the_old_ones(play: Play) -> None:
    group = TrajectoryGroup(0, TASKS[0], tuple(play("retract")))
    credit = np.ones(len(group.finished), dtype=np.float32)
    whole = make_batch([group], credit=credit)
    masked = make_batch([group], credit=credit, oldest_version=1)
    sampled = whole.policy_versions >= 0
    assert (whole.loss_mask[sampled] == 1).all()
    assert set(whole.policy_versions[sampled].tolist()) == {0, 1}
    assert (
        masked.loss_mask == np.where(whole.policy_versions >= 1, whole.loss_mask, 0)
    ).all()
