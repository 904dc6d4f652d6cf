"""Training on a real SGLang server: it samples what is trained, and learns."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, variance

import pytest

from agentrl.config.load import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from tests.engines.sglang.conftest import CODE_EXAMPLE
from tests.engines.sglang.models import NEAR
from tests.engines.sglang.runs import assert_each_was_trained_once, train
from tests.run.tiny_run import metrics

pytestmark = [pytest.mark.sglang]


@pytest.mark.parametrize("weight_sync", ["disk", "mount", "http", "broadcast"])
def test_training_publishes_each_step_and_samples_what_it_trains(
    tmp_path: Path, model: Path, server: str, weight_sync: str
) -> None:
    own = [f"weight_sync={weight_sync}"]
    if weight_sync == "mount":
        written, seen = tmp_path / "written", tmp_path / "seen"
        seen.symlink_to(written)
        own = [
            "weight_sync=disk",
            f"weights_folder=file://{written}",
            f"weights_mount={seen}",
        ]
    run_dir = train(
        tmp_path,
        model,
        f"rollout.sglang.urls=[{server}]",
        *(f"rollout.sglang.{one}" for one in own),
    )
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < NEAR
    assert_each_was_trained_once(run_dir)


@pytest.mark.slow
def test_rank_0_broadcasts_what_two_ranks_hold_to_the_server_of_a_rollout_worker(
    tmp_path: Path, model: Path, python: str
) -> None:
    apart = ("placement.mode=ray", "placement.world_size=2", "placement.rollout_workers=1")
    server = (f"rollout.sglang.python={python}", "rollout.sglang.weight_sync=broadcast")
    run_dir = train(tmp_path, model, *apart, *server, "train.steps=2")
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert_each_was_trained_once(run_dir)


@pytest.mark.slow
def test_a_server_sleeps_while_its_rank_trains(
    tmp_path: Path, model: Path, python: str
) -> None:
    own = ("rollout.sleep=true", f"rollout.sglang.python={python}", "train.steps=2")
    run_dir = train(tmp_path, model, *own)
    rows = list(read_jsonl(run_dir / "metrics.jsonl"))
    assert [row["policy_version"] for row in rows] == [1, 2]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert all(row["time/engine_sleep_s"] > 0 for row in rows)
    assert_each_was_trained_once(run_dir)


@pytest.mark.slow
def test_the_code_example_learns(tmp_path: Path, python: str, warmed_up: Path) -> None:
    run_dir = tmp_path / "run"
    own = (
        f"run.dir={run_dir}",
        f"model.path={warmed_up}",
        "run.seed=1",
        "placement.mode=inline",
    )
    small = ("stages.rl.steps=10", "stages.rl.eval.sets={}")
    sglang = ("rollout.engine=sglang", f"rollout.sglang.python={python}")
    with Trainer(load_config(CODE_EXAMPLE, [*own, *small, *sglang])) as trainer:
        trainer.train()
    rewards = rewards_of_groups(run_dir)
    first = [reward for step, reward in rewards if step <= 4]
    last = [reward for step, reward in rewards if step > 6]
    error = math.sqrt(variance(first) / len(first) + variance(last) / len(last))
    assert fmean(last) - fmean(first) > 3 * error, (fmean(first), fmean(last), error)


def rewards_of_groups(run_dir: Path) -> list[tuple[int, float]]:
    """The step and the mean reward of each group that was played for training; siblings are no
    independent samples.
    """
    rewards = defaultdict[tuple[int, int], list[float]](list)
    for row in TrajectoryReader(RunDirectory.open(run_dir)).summaries(purpose="train"):
        if row.reward is not None:
            rewards[row.step, row.group_index].append(row.reward)
    return [(step, fmean(siblings)) for (step, _), siblings in rewards.items()]
