"""A group of equal rewards loses the credit of its reward alone: auxiliary losses read it still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms import AlgorithmSpec, AuxiliaryLoss, make_algorithm
from agentrl.algorithms.functions.losses import imitation_loss
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.group_rewards import comparable, rewards_of, weights_of
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import Batch, SegmentKind, TrajectoryGroup
from agentrl.types.arrays import Floats
from tests.controller.replay import learn
from tests.controller.tiny import made_groups


def of_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> TrajectoryGroup:
    given = iter(rewards)
    return group.with_rewarded(lambda one: replace(one, reward=next(given)))


def with_own_loss(coef: float) -> AlgorithmSpec:
    """An algorithm of a user's with a loss on observations."""

    def select(batch: Batch) -> Any:
        return batch.kind == SegmentKind.OBSERVATION

    own = AuxiliaryLoss("own", coef, select, imitation_loss)
    return replace(make_algorithm("rloo"), auxiliary=(own,))


VAPO = {"filter_zero_variance": True}


@pytest.mark.parametrize(
    ("algorithm", "reward", "is_kept"),
    [
        (make_algorithm("grpo"), 1.0, False),
        (make_algorithm("echo"), 1.0, True),
        (make_algorithm("echo"), 0.0, True),
        (make_algorithm("echo", {"observation_coef": 0.0}), 1.0, False),
        (with_own_loss(0.5), 1.0, True),
        (with_own_loss(0.0), 1.0, False),
        (make_algorithm("vapo", VAPO), 1.0, True),
        # nothing of it was right, and so nothing is imitated
        (make_algorithm("vapo", VAPO), 0.0, False),
    ],
)
def test_a_group_of_equal_rewards_is_kept_for_what_an_auxiliary_loss_reads(
    algorithm: AlgorithmSpec, reward: float, is_kept: bool
) -> None:
    (group,) = made_groups(0, 1)
    assert comparable(algorithm, of_rewards(group, [reward] * 4)).keep == is_kept
    assert comparable(algorithm, of_rewards(group, [0.0, reward, 2.0, 3.0])).keep


def test_a_rollout_without_others_stays_out() -> None:
    (group,) = made_groups(0, 1)
    alone = replace(group, trajectories=group.trajectories[:1])
    found = comparable(make_algorithm("echo"), alone)
    assert (found.keep, found.reason) == (False, "too_few_finished")


def test_it_weighs_nothing_in_any_other_loss() -> None:
    first, second = made_groups(0, 2)
    groups = [of_rewards(first, [1.0] * 4), of_rewards(second, [0.0, 1.0, 1.0, 0.0])]
    rewards = rewards_of(groups, 0)
    echo = make_algorithm("echo")
    assert weights_of(make_algorithm("grpo"), groups, rewards) is None
    assert _listed(weights_of(echo, groups, rewards)) == [0, 0, 0, 0, 1, 1, 1, 1]
    halves = replace(echo, select=lambda rewards: np.full(rewards.reward.size, 0.5))
    assert _listed(weights_of(halves, groups, rewards)) == [0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5]


def _listed(weights: Any) -> list[float]:
    assert weights is not None
    return list(weights)


def losses(
    model: Path, folder: Path, groups: list[TrajectoryGroup], name: str
) -> dict[str, float]:
    group = LocalRoleGroup(threads=1)
    try:
        given = {
            "num_steps": 1,
            "mini_batch_groups": 2,
            "detail": "full",
            "batches": [groups],
        }
        (row,) = learn(group, model, folder, algorithm_name=name, **given)
    finally:
        group.close()
    return row


def test_a_batch_with_it_has_the_policys_loss_of_one_without(
    model: Path, tmp_path: Path
) -> None:
    first, second = made_groups(0, 2)
    equal, unequal = of_rewards(first, [1.0] * 4), of_rewards(second, [0.0, 1.0, 2.0, 4.0])
    both = losses(model, tmp_path / "both", [equal, unequal], "echo")
    one = losses(model, tmp_path / "one", [unequal], "echo")
    assert both["policy/loss"] == pytest.approx(one["policy/loss"], rel=1e-5)
    assert both["count/trained_tokens"] == one["count/trained_tokens"]
    # the observations of both, none of which are the same
    assert both["policy/observation_nll"] != pytest.approx(
        one["policy/observation_nll"], rel=1e-6
    )
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "both"))
    weights: dict[int, Floats] = {}
    for row in reader.annotations():
        weights.setdefault(int(row.trajectory_id.split("-")[-3]), row.arrays["loss_weight"])
    assert [weights[n].any() for n in (0, 1)] == [False, True]


def test_a_batch_of_equal_rewards_alone_teaches_what_was_observed(
    model: Path, tmp_path: Path
) -> None:
    groups = [of_rewards(one, [1.0] * 4) for one in made_groups(0, 2)]
    row = losses(model, tmp_path / "run", groups, "echo")
    assert row["policy/loss"] == 0.0
    assert row["policy/observation_nll"] > 1.0
    assert row["optim/grad_norm"] > 0.0
    assert row["count/trained_tokens"] == 0.0
