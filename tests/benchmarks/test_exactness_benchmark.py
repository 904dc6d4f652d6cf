"""The page of benchmarks/exactness.py, and how it compares a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.training import DistSpec, join, leave
from benchmarks.exactness import Line, page
from benchmarks.figures import Figures
from benchmarks.trainer.exactness_rank import Job, compare
from tests.tiny_models import write_family
from tests.training.sampled_batch import sampled_batch

pytestmark = pytest.mark.tooling


def test_the_page_has_a_row_for_each_combination_and_says_why_one_is_refused() -> None:
    found = {"max": 0.25, "mean": 0.002, "k3": 1e-5, "far": 0.5}
    lines = [
        Line("qwen3", "torch", "bfloat16", False, "plain", found),
        Line("mixtral", "torch", "float32", False, "plain", {**found, "experts": 0.125}),
        Line(
            "mixtral", "torch", "float32", True, "any", refused="run.deterministic needs it"
        ),
    ]
    cost = Figures()
    cost.at_most("generation: processor time", 4.0, "x", 3.0)
    text = page(lines, cost)
    numbers = "0.25 | 0.002 | 1e-05 | 50.0%"
    assert f"| qwen3 | torch | bfloat16 | plain | no | {numbers} | – |" in text
    assert f"| mixtral | torch | float32 | plain | no | {numbers} | 12.5% |" in text
    assert "| mixtral | torch | float32 | any | yes | refused |" in text
    assert "- run.deterministic needs it\n" in text
    assert "Not measured here: sglang." in text
    assert "| generation: processor time | 4 x | <= 3 | **no** |" in text


def test_a_deterministic_trainer_differs_by_nothing_and_an_ordinary_one_by_rounding(
    tmp_path: Path,
) -> None:
    model = write_family(tmp_path, "qwen3", vocab_size=96)
    batch = sampled_batch(model)
    join(DistSpec())
    try:
        exact, ordinary = (
            compare(Job(str(model), batch, {"deterministic": mode}), DistSpec())
            for mode in (True, False)
        )
    finally:
        leave()
        torch.use_deterministic_algorithms(False)
    assert set(exact.values()) == {0.0}
    assert 0 < ordinary["mean"] < ordinary["max"] < 1e-4


def test_experts_are_those_of_the_sampler_where_nothing_rounds_otherwise(
    tmp_path: Path,
) -> None:
    model = write_family(tmp_path, "qwen3_moe", vocab_size=96)
    batch = sampled_batch(model, deterministic=False)
    assert batch.routed_experts is not None
    moved = batch.routed_experts.copy()
    sampled = np.flatnonzero(batch.loss_mask)
    # of the tokens before a quarter of the trained ones
    chosen = sampled[::4] - 1
    moved[chosen] = (moved[chosen] + 1) % 3
    join(DistSpec())
    try:
        same, other = (
            compare(Job(str(model), replace(batch, routed_experts=one)), DistSpec())[
                "experts"
            ]
            for one in (batch.routed_experts, moved)
        )
    finally:
        leave()
    assert same == 0.0
    assert other == len(chosen) / len(sampled)
