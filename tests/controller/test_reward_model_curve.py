"""The same pairs give the same loss curve, whoever computes it (invariant 5)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.controller.group import LocalGroup, WorkerGroup
from agentrl.types import Segment, SegmentKind, Trajectory, TrajectoryGroup
from tests.controller.replay import learn
from tests.controller.tiny import made_groups

CURVE = ("reward_model/loss", "reward_model/accuracy", "reward_model/margin", "optim/grad_norm")


def as_pair(group: TrajectoryGroup) -> TrajectoryGroup:
    return replace(group, trajectories=tuple(as_given(trajectory) for trajectory in group.trajectories))


def as_given(trajectory: Trajectory) -> Trajectory:
    """The first turn alone, as data has it; the better one asks for a margin."""
    turn = trajectory.turns[0]
    ids = turn.completion[0].token_ids
    given = replace(turn, completion=(Segment(SegmentKind.TARGET, ids),), sampling=None)
    return replace(trajectory, turns=(given,), reward=0.25 * (1 - trajectory.sibling))


def curve(group: WorkerGroup, model: Path, run_dir: Path, micro_batch_tokens: int = 120) -> list[list[float]]:
    batches = [[as_pair(pair) for pair in made_groups(5 * n, 5, siblings=2)] for n in range(5)]
    rows = learn(
        group,
        model,
        run_dir,
        num_steps=5,
        micro_batch_tokens=micro_batch_tokens,
        batches=batches,
        settings={"centring": 0.05},
        mini_batch_groups=5,
        reward_model=True,
    )
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    return [[row[name] for name in CURVE] for row in rows]


@pytest.fixture(scope="module")
def inline(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    group = LocalGroup(threads=1)
    try:
        found = curve(group, model, tmp_path_factory.mktemp("curves") / "inline")
    finally:
        group.close()
    losses = [row[0] for row in found]
    assert max(losses) - min(losses) > 1e-3  # a curve that did not move would prove nothing
    return found


@pytest.mark.parametrize("micro_batch_tokens", [80, 100_000])
def test_micro_batches_change_nothing(
    inline: list[list[float]], model: Path, tmp_path: Path, micro_batch_tokens: int
) -> None:
    group = LocalGroup(threads=1)
    try:
        found = curve(group, model, tmp_path / "run", micro_batch_tokens)
    finally:
        group.close()
    for row, expected in zip(found, inline, strict=True):
        assert row == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_world_size_changes_nothing(
    inline: list[list[float]], model: Path, tmp_path: Path, ray_started: None, world_size: int
) -> None:
    from agentrl.controller.ray_group import RayGroup

    group = RayGroup(world_size, threads=1)
    try:
        found = curve(group, model, tmp_path / "run")
    finally:
        group.close()
    for row, expected in zip(found, inline, strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
