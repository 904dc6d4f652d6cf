"""Training on a real SGLang server: it samples what is trained, and learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rollouts.sglang.runs import assert_each_was_trained_once, train
from tests.run.tiny_run import metrics

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]


@pytest.mark.parametrize("weight_sync", ["disk", "tensor", "group"])
def test_training_publishes_each_step_and_samples_what_it_trains(
    tmp_path: Path, model: Path, server: str, weight_sync: str
) -> None:
    run_dir = train(tmp_path, model, f"rollout.sglang.urls=[{server}]", f"rollout.sglang.weight_sync={weight_sync}")
    rows = metrics(run_dir)
    assert [row["policy_version"] for row in rows] == [1, 2, 3]
    assert max(row["mismatch/logp_abs/max"] for row in rows) < 1e-4
    assert_each_was_trained_once(run_dir)


def test_training_learns(tmp_path: Path, model: Path, server: str) -> None:
    rows = metrics(train(tmp_path, model, f"rollout.sglang.urls=[{server}]", "train.steps=20", "optim.lr=3e-3"))
    rewards = [row["reward/mean"] for row in rows]
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5]), rewards
