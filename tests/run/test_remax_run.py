"""A run whose groups have a greedy baseline: stored, never trained, resumed and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import DataError
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from tests.run.tiny_run import metrics, states, train

REMAX = (
    "stages.1.algorithm.name=remax",
    "stages.1.eval.every=null",
    "stages.1.eval.sets={}",
    "stages.0.steps=6",
    "rollout.group_size=2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remax")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run of two steps, of which each test asks something else."""
    return trained(folder, "whole", "train.steps=2")


def trained(folder: Path, name: str, *overrides: str, resume: bool = False) -> Path:
    return train(folder, *REMAX, *overrides, name=name, resume=resume)


def learned(run_dir: Path) -> list[dict[str, float]]:
    """What a stage of rollouts has learned, by step."""
    own = [row for row in metrics(run_dir) if row["stage"] == "rl" and row["step"]]
    names = ("policy/loss", "optim/grad_norm", "reward/mean", "group/baseline_reward")
    return [{name: row[name] for name in names if name in row} for row in own]


@pytest.mark.slow
def test_the_greedy_rollout_is_stored_and_never_trained(whole: Path) -> None:
    reader = TrajectoryReader(RunDirectory.open(whole))
    played = [one for one in reader.summaries() if one.stage == "rl"]
    greedy = {one.id for one in played if one.purpose == "baseline"}
    assert [one.rollout_index for one in played] == [0, 1, 2] * (len(played) // 3)
    assert {one.id for one in played if one.rollout_index == 2} == greedy
    trained = {one.trajectory_id for one in reader.annotations(stage="rl")}
    assert trained
    assert not trained & greedy
    for row in metrics(whole):
        if row["stage"] == "rl":
            own = [one for one in played if one.step == row["step"]]
            rewards = {
                purpose: [
                    one.reward for one in own if one.purpose == purpose and one.reward
                ]
                for purpose in ("train", "baseline")
            }
            assert row["group/baseline_reward"] == pytest.approx(
                sum(rewards["baseline"]) / 3
            )
            assert row["reward/mean"] == pytest.approx(sum(rewards["train"]) / 6)
            assert row["count/trained_trajectories"] == 6
    ledger = read_jsonl(whole / "ledger.jsonl")
    dropped = [row["rollout_indices"] for row in ledger if row.get("reason") == "baseline"]
    assert dropped == [[2]] * 6
    assert not states(whole).keys() & {"running", "finished", "buffered", "taken"}


@pytest.mark.slow
def test_one_rollout_beside_the_greedy_one_is_enough(folder: Path) -> None:
    rows = learned(trained(folder, "one", "train.steps=3", "rollout.group_size=1"))
    assert any(row.get("optim/grad_norm", 0.0) > 0 for row in rows)


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_numbers(folder: Path, whole: Path) -> None:
    trained(folder, "cut", "train.steps=1")
    assert learned(trained(folder, "cut", "train.steps=2", resume=True)) == learned(whole)


@pytest.mark.slow
def test_stored_groups_are_replayed_with_their_greedy_rollouts(
    folder: Path, whole: Path
) -> None:
    again = trained(folder, "again", f"run.replay={whole}", "train.steps=2")
    assert learned(again) == learned(whole)
    grpo = trained(folder, "grpo", "train.steps=2", "stages.1.algorithm.name=grpo")
    with pytest.raises(
        DataError, match="compares with a greedy rollout of each group, and group"
    ):
        trained(folder, "none", f"run.replay={grpo}", "train.steps=2")


@pytest.mark.slow
def test_rollouts_may_run_ahead(folder: Path) -> None:
    correction = "stages.1.algorithm.rollout_correction.level=token"
    ahead = ("run.deterministic=false", "rollout.schedule=async", correction)
    run_dir = trained(folder, "ahead", "train.steps=4", *ahead)
    assert len(learned(run_dir)) == 4
    assert not states(run_dir).keys() & {"running", "finished", "buffered", "taken"}
