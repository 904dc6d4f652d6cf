"""Groups of several agents in training: baselines by agent, and no gradient of an untrained one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from agentrl.algorithms import make_algorithm
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.group_rewards import (
    comparable,
    keep_any_seat,
    rewards_of,
    seat_groups,
)
from agentrl.controller.scoring import RewardScorer
from agentrl.rollouts import GroupOutcome, GroupRequest, make_batch
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import Segment, SegmentKind, Trajectory, TrajectoryGroup
from tests.controller.replay import learn
from tests.controller.tiny import made_groups, write_model

GRPO = make_algorithm("grpo", {"scale_rewards": "none"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def seated(
    trajectory: Trajectory, other: Trajectory, rewards: tuple[float, float], *, train: bool
) -> Trajectory:
    """The turns of two episodes as those of ``main`` and ``foe`` in one."""
    foe = [replace(turn, agent="foe") for turn in other.turns]
    shift = len(trajectory.turns)
    turns = (
        *trajectory.turns,
        *(
            replace(
                turn,
                index=turn.index + shift,
                parent=None if turn.parent is None else turn.parent + shift,
            )
            for turn in foe
        ),
    )
    seats = {
        "main": {"train": True, "reward": rewards[0], "rewards": {}},
        "foe": {"train": train, "reward": rewards[1], "rewards": {}},
    }
    return replace(trajectory, turns=turns, reward=rewards[0], info={"seats": seats})


def games(*, train: bool, seed: int = 100, number: int = 6) -> list[TrajectoryGroup]:
    """Groups of games; the foes' tokens are those of ``seed``."""
    own, others = made_groups(0, number), made_groups(seed, number)
    rng = np.random.default_rng(3)
    return [
        replace(
            group,
            trajectories=tuple(
                seated(one, foe, tuple(rng.normal(size=2).tolist()), train=train)
                for one, foe in zip(group.trajectories, other.trajectories, strict=True)
            ),
        )
        for group, other in zip(own, others, strict=True)
    ]


def test_the_baseline_of_an_agent_is_the_mean_of_its_own_rewards() -> None:
    (group,) = games(train=True, number=1)
    pairs = [(1.0, 10.0), (2.0, 30.0), (3.0, 0.0), (4.0, 0.0)]
    changed = tuple(
        seated(one, one, pair, train=True)
        for one, pair in zip(made_groups(0, 1)[0].trajectories, pairs, strict=True)
    )
    # one rollout ended before the foe had a turn
    alone = replace(made_groups(0, 1)[0].trajectories[3], reward=4.0, info={})
    group = replace(group, trajectories=(*changed[:3], alone))
    groups, rows = seat_groups([group], partial(comparable, GRPO))
    rewards = rewards_of(groups, 0)
    assert rewards.reward.tolist() == [10.0, 30.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert rewards.group.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert rows == [0, 0]
    credit = GRPO.credit(rewards, {}).trajectory
    # means 40 / 3 and 2.5
    assert credit == pytest.approx([-10 / 3, 50 / 3, -40 / 3, -1.5, -0.5, 0.5, 1.5])


def test_an_agent_with_nothing_to_compare_is_left_out_and_the_other_kept() -> None:
    (whole,) = made_groups(0, 1)
    flat = tuple(
        seated(one, one, (float(n), 0.0), train=True)
        for n, one in enumerate(whole.trajectories)
    )
    group = replace(whole, trajectories=flat)
    keep = partial(comparable, GRPO)
    groups, _ = seat_groups([group], keep)
    assert [one.turns[0].agent for one in groups[0].finished] == ["main"] * 4
    assert len(groups) == 1
    assert keep_any_seat(group, keep).keep
    equal = tuple(seated(one, one, (1.0, 0.0), train=True) for one in whole.trajectories)
    assert keep_any_seat(replace(whole, trajectories=equal), keep).reason == "no_spread"


def test_tokens_of_an_untrained_agent_are_in_no_batch() -> None:
    groups, rows = seat_groups(games(train=False), partial(comparable, GRPO))
    batch = make_batch(
        groups,
        credit=np.zeros(sum(len(g.finished) for g in groups), np.float32),
        group_rows=rows,
    )
    own = sum(
        one.num_policy_tokens for group in made_groups(0, 6) for one in group.finished
    )
    assert int(batch.loss_mask.sum()) == own
    assert batch.num_groups == 6


def test_groups_of_agents_of_one_task_share_an_optimizer_step() -> None:
    groups, rows = seat_groups(games(train=True), partial(comparable, GRPO))
    batch = make_batch(
        groups,
        credit=np.zeros(sum(len(g.finished) for g in groups), np.float32),
        group_rows=rows,
    )
    assert (batch.num_trajectories, batch.num_groups) == (48, 6)


def trained(model: Path, folder: Path, batches: Any) -> tuple[Any, TrajectoryReader]:
    group = LocalRoleGroup(threads=1)
    try:
        learn(
            group,
            model,
            folder / "run",
            num_steps=1,
            batches=batches,
            detail="tokens",
            deterministic=True,
        )
    finally:
        group.close()
    run = RunDirectory.open(folder / "run")
    return load_file(run.models_folder / "rl" / "model.safetensors"), TrajectoryReader(run)


def other_tokens(trajectory: Trajectory) -> Trajectory:
    """With other tokens sampled by the foe, and other logprobs."""
    turns = tuple(
        replace(
            turn,
            completion=tuple(
                Segment(s.kind, (s.token_ids + 1) % 256, s.logprobs - 1.0, s.policy_version)  # type: ignore[operator]
                for s in turn.completion
            ),
        )
        if turn.agent == "foe"
        else turn
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=turns)


def test_an_untrained_agent_gets_exactly_zero_gradient(model: Path, tmp_path: Path) -> None:
    groups = games(train=False)
    changed = [group.with_rewarded(other_tokens) for group in groups]
    without = [group.by_seat()[0] for group in groups]
    weights = [
        trained(model, tmp_path / str(n), [batch])[0]
        for n, batch in enumerate((groups, changed, without))
    ]
    start = load_file(model / "model.safetensors")
    for name, value in weights[0].items():
        assert np.array_equal(value, weights[1][name])
        assert np.array_equal(value, weights[2][name])
    assert any(not np.array_equal(value, start[name]) for name, value in weights[0].items())


@pytest.mark.slow
def test_annotations_of_a_game_cover_the_tokens_of_every_agent(
    model: Path, tmp_path: Path
) -> None:
    for train in (True, False):
        _, reader = trained(model, tmp_path / str(train), [games(train=train)])
        found = {one.trajectory_id: one for one in reader.annotations(step=1)}
        assert len(found) == 24
        for stored in reader.get_many(list(found)):
            trajectory = stored.trajectory
            own = found[trajectory.id].arrays
            assert {array.size for array in own.values()} == {trajectory.num_policy_tokens}
            foe = np.concatenate(
                [
                    np.full(len(segment), turn.agent == "foe")
                    for turn in trajectory.turns
                    for segment in turn.completion
                    if segment.kind is SegmentKind.POLICY
                ]
            )
            assert (own["loss_weight"][~foe] > 0).all()
            assert (own["loss_weight"][foe] > 0).all() == train
            assert np.isnan(own["advantages"][foe]).all() != train
            assert set(own["loss_reason"][foe].tolist()) == {0 if train else 1}
            assert np.isfinite(own["advantages"][~foe]).all()


def test_a_reward_model_refuses_an_episode_of_several_agents() -> None:
    (group,) = games(train=True, number=1)
    request = GroupRequest(group.group_index, group.task, 4)
    unasked: Any = None  # no episode is left to score
    (outcome,) = RewardScorer(unasked, weight=1.0).score([GroupOutcome(request, group)])
    assert {str(one.status) for one in outcome.group.trajectories} == {"failed(reward)"}
    assert "has several agents" in outcome.group.trajectories[0].status.detail
