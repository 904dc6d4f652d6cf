"""Invariants 10 and 12: nothing stale and nothing failed is learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.algorithms import make_algorithm
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.group_rewards import summary_of
from agentrl.errors import TrainingError
from agentrl.metrics import rollout_metrics
from agentrl.types import Status, TrajectoryGroup
from tests.controller.replay import Replay, learn
from tests.controller.tiny import made_groups


def with_lost(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group with two more siblings that came to nothing, one of them half way."""
    model = group.trajectories[0]
    failed = replace(
        model, rollout_index=90, status=Status("failed", "engine"), reward=None
    )
    cancelled = replace(
        model, rollout_index=91, status=Status("cancelled", "closed"), reward=None, turns=()
    )
    return replace(group, trajectories=(failed, *group.trajectories, cancelled))


@pytest.mark.invariant
def test_failed_and_cancelled_trajectories_change_no_reward_statistic() -> None:
    groups = made_groups(0, 3)
    clean = rollout_metrics(groups)
    lossy = rollout_metrics([with_lost(group) for group in groups])
    counted = {"count/trajectories", "excluded_frac", "failed_frac"}
    differing = {
        name for name in clean.keys() | lossy.keys() if clean.get(name) != lossy.get(name)
    }
    assert differing - counted == {
        name for name in lossy if name.startswith(("failed/", "cancelled"))
    }


@pytest.mark.invariant
def test_failed_and_cancelled_trajectories_change_no_loss_by_a_bit(
    model: Path, tmp_path: Path
) -> None:
    curves = []
    for name, change in (("clean", lambda group: group), ("lossy", with_lost)):
        group = LocalRoleGroup(threads=1)
        try:
            batches = [[change(one) for one in made_groups(6 * n, 6)] for n in range(2)]
            curves.append(
                learn(group, model, tmp_path / name, num_steps=2, batches=batches)
            )
        finally:
            group.close()
    learned = (
        "policy/loss",
        "optim/grad_norm",
        "policy/entropy",
        "count/trained_tokens",
        "count/trained_trajectories",
    )
    clean, lossy = ([[row[name] for name in learned] for row in rows] for rows in curves)
    assert clean == lossy


def test_a_groups_fate_is_decided_by_those_that_finished() -> None:
    (group,) = made_groups(0, 1)
    assert [t.id for t in with_lost(group).finished] == [t.id for t in group.trajectories]
    assert make_algorithm("grpo", {}).keep_group(summary_of(with_lost(group))).keep


@pytest.mark.invariant
def test_a_batch_staler_than_the_schedule_allows_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # version 0's tokens may be trained while it is published, alone
    monkeypatch.setattr(Replay, "max_staleness", 0)
    group = LocalRoleGroup(threads=1)
    try:
        with pytest.raises(
            TrainingError,
            match="sampled by policy version 0, the schedule allows 1 at the least",
        ):
            learn(group, model, tmp_path / "run", num_steps=2)
    finally:
        group.close()
