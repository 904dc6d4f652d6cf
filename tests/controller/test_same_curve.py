"""The same trajectories, or pairs, give the same loss curve, whoever computes it (invariant 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.sections import PoolConfig
from agentrl.controller.cluster.role_group import LocalRoleGroup, RoleGroup
from agentrl.types import Segment, SegmentKind, Trajectory, TrajectoryGroup
from tests.controller.replay import learn
from tests.controller.tiny import made_groups

CURVES: Mapping[str, tuple[str, ...]] = {
    "policy": (
        "policy/loss",
        "policy/entropy",
        "optim/grad_norm",
        "mismatch/logp_abs/mean",
        "policy/clip_frac_high",
    ),
    "pairs": (
        "reward_model/loss",
        "reward_model/accuracy",
        "reward_model/margin",
        "optim/grad_norm",
    ),
}


def as_pair(group: TrajectoryGroup) -> TrajectoryGroup:
    return replace(
        group, trajectories=tuple(as_given(trajectory) for trajectory in group.trajectories)
    )


def as_given(trajectory: Trajectory) -> Trajectory:
    """The first turn alone, as data has it; the better one asks for a margin."""
    turn = trajectory.turns[0]
    ids = turn.completion[0].token_ids
    given = replace(turn, completion=(Segment(SegmentKind.TARGET, ids),), sampling=None)
    return replace(trajectory, turns=(given,), reward=0.25 * (1 - trajectory.rollout_index))


def of_pairs() -> dict[str, Any]:
    batches = [
        [as_pair(pair) for pair in made_groups(5 * n, 5, siblings=2)] for n in range(5)
    ]
    return {
        "batches": batches,
        "settings": {"centring": 0.05},
        "mini_batch_groups": 5,
        "reward_model": True,
    }


def curve(
    group: RoleGroup, kind: str, model: Path, run_dir: Path, tokens: int = 120
) -> list[list[float]]:
    special = of_pairs() if kind == "pairs" else {}
    rows = learn(group, model, run_dir, num_steps=5, micro_batch_tokens=tokens, **special)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    return [[row[name] for name in CURVES[kind]] for row in rows]


@pytest.fixture(scope="module")
def alone() -> Iterator[RoleGroup]:
    group = LocalRoleGroup(threads=1)
    yield group
    group.close()


@pytest.fixture(scope="module")
def inline(
    alone: RoleGroup, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, list[list[float]]]:
    folder = tmp_path_factory.mktemp("curves")
    found = {kind: curve(alone, kind, model, folder / kind) for kind in CURVES}
    for rows in found.values():
        losses = [row[0] for row in rows]
        # a curve that did not move would prove nothing
        assert max(losses) - min(losses) > 1e-3
    return found


def assert_same(found: list[list[float]], expected: list[list[float]]) -> None:
    for row, other in zip(found, expected, strict=True):
        # 40 units in the last place of float32
        assert row == pytest.approx(other, rel=5e-6, abs=1e-5)


@pytest.mark.invariant
@pytest.mark.parametrize("kind", CURVES)
@pytest.mark.parametrize("tokens", [80, 100_000])
def test_micro_batches_change_nothing(
    alone: RoleGroup,
    inline: Mapping[str, list[list[float]]],
    model: Path,
    tmp_path: Path,
    tokens: int,
    kind: str,
) -> None:
    assert_same(curve(alone, kind, model, tmp_path / "run", tokens), inline[kind])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "layout"),
    [
        pytest.param(1, {}, id="one"),
        pytest.param(2, {}, id="two"),
        pytest.param(2, {"tp_size": 2}, id="tensor", marks=pytest.mark.invariant),
        pytest.param(2, {"sp_size": 2}, id="sequence"),
    ],
)
def test_the_layout_of_ranks_changes_nothing(
    inline: Mapping[str, list[list[float]]],
    model: Path,
    tmp_path: Path,
    ray_started: None,
    world_size: int,
    layout: dict[str, int],
) -> None:
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup

    group = RayRoleGroup(PoolConfig(world_size=world_size, **layout))
    try:
        for kind in CURVES:
            assert_same(curve(group, kind, model, tmp_path / kind), inline[kind])
    finally:
        group.close()
