"""A deterministic run trains with exactly the logprobs that its tokens were sampled with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.store import RunDirectory, TrajectoryReader
from tests.run.tiny_run import TRAINED, metrics, train

CODE = Path(__file__).resolve().parents[2] / "examples" / "code" / "config.yaml"


def differences(run_dir: Path) -> Sequence[Any]:
    """The largest of each step that was trained on sampled tokens."""
    steps = [row for row in metrics(run_dir) if row["stage"] == "rl" and row["step"]]
    return [row["mismatch/logp_abs/max"] for row in steps]


@pytest.mark.invariant
def test_no_token_differs_in_a_deterministic_run(trained: RunDirectory) -> None:
    assert differences(trained.root) == [0.0, 0.0]
    reader = TrajectoryReader(trained)
    learned = [*reader.annotations(stage="rl")]
    ids = [one.trajectory_id for one in learned]
    stored = dict(zip(ids, (one.trajectory for one in reader.get_many(ids)), strict=True))
    tokens = 0
    for one in learned:
        segments = [
            part for turn in stored[one.trajectory_id].turns for part in turn.segments
        ]
        sampled = [part.logprobs for part in segments if part.logprobs is not None]
        trainers, samplers = one.arrays["old_logprobs"], np.concatenate(sampled)
        is_trained = np.isfinite(trainers)
        assert np.array_equal(trainers[is_trained], samplers[is_trained])
        tokens += int(is_trained.sum())
    counted = [row.get("count/trained_tokens", 0) for row in metrics(trained.root)]
    assert tokens == sum(counted[-2:]) > 0


@pytest.mark.slow
def test_level_auto_beside_an_engine_that_agrees_is_level_none(
    trained: RunDirectory, tmp_path: Path
) -> None:
    level = "stages.rl.algorithm.rollout_correction.level=none"
    assert metrics(train(tmp_path, *TRAINED, level)) == metrics(trained.root)


@pytest.mark.slow
def test_no_token_of_the_code_example_differs(tmp_path: Path) -> None:
    run_dir = train(
        tmp_path,
        "run.deterministic=true",
        f"run.base_dir={CODE.parent}",
        "placement.mode=inline",
        "stages.warmup.steps=20",
        # so short a warm-up earns no reward yet: all tokens are trained, by their entropy
        "stages.rl.algorithm={name: grpo, filter_zero_variance: false, entropy_coef: 0.1}",
        "stages.rl.steps=3",
        "stages.rl.train.batch_prompts=4",
        "stages.rl.eval.sets={}",
        text=CODE.read_text(encoding="utf-8"),
    )
    assert differences(run_dir) == [0.0] * 3
