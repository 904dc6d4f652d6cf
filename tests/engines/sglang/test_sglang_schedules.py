"""Rollouts that run ahead of training on a real SGLang server: what a publish interrupts goes on,
with its versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import Trajectory
from tests.engines.sglang.runs import assert_each_was_trained_once, train
from tests.run.tiny_run import metrics

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

AHEAD = (
    "train.steps=4",
    "algorithm.rollout_correction.level=token",
    "rollout.max_turn_tokens=110",
    "rollout.max_running=32",
)

QUEUED = ("rollout.schedule=async", "rollout.max_staleness=2", "rollout.max_running=8")
"""Two groups play at a time and four more wait when a batch is complete, so that a publish meets
some: those that all begin together may all end before it."""


def trajectories(run_dir: Path) -> Iterator[Trajectory]:
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    for stored in reader.get_many([row.id for row in reader.summaries()]):
        yield stored.trajectory


def turns_of_versions(run_dir: Path) -> list[list[int]]:
    """The policy versions of each turn's completion, in order; along an episode they never fall."""
    found = []
    for trajectory in trajectories(run_dir):
        own = [
            [s.policy_version for s in turn.completion if s.policy_version is not None]
            for turn in trajectory.turns
        ]
        flat = [version for turn in own for version in turn]
        assert all(earlier <= later for earlier, later in pairwise(flat)), trajectory.id
        found += own
    return found


@pytest.mark.parametrize(
    ("schedule", "interrupted", "stale_kv"),
    [
        pytest.param(
            ("rollout.schedule=one_step_off",), False, {"never"}, id="one_step_off"
        ),
        pytest.param(QUEUED, True, {"never"}, id="async"),
        pytest.param(
            (*QUEUED, "rollout.pause_mode=in_place"),
            True,
            {"never", "always"},
            id="in_place",
        ),
    ],
)
def test_episodes_run_through_a_publish_with_each_token_s_version(
    tmp_path: Path,
    model: Path,
    server: str,
    schedule: tuple[str, ...],
    interrupted: bool,
    stale_kv: set[str],
) -> None:
    run_dir = train(tmp_path, model, f"rollout.sglang.urls=[{server}]", *AHEAD, *schedule)
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3, 4]
    stalest = max(row["async/staleness/max"] for row in rows)
    assert 1 <= stalest <= (2 if interrupted else 1)
    assert any(len(versions) > 1 for versions in turns_of_versions(run_dir)) == interrupted
    assert {
        turn.stale_kv for trajectory in trajectories(run_dir) for turn in trajectory.turns
    } == stale_kv
    assert_each_was_trained_once(run_dir)


def test_a_rollout_worker_plays_on_a_server_while_the_rank_trains(
    tmp_path: Path, model: Path, server: str
) -> None:
    apart = ("placement.mode=ray", "placement.rollout_workers=1", "rollout.schedule=async")
    run_dir = train(tmp_path, model, f"rollout.sglang.urls=[{server}]", *AHEAD, *apart)
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3, 4]
    # Whether a publish meets a turn is a matter of speeds here; none goes back to older weights.
    assert turns_of_versions(run_dir)
    assert_each_was_trained_once(run_dir)
