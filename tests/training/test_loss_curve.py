"""Seeded curves in float64: a change that should not alter numbers shows the same curves.

``python -m tests.training.test_loss_curve`` writes them anew, for a change that should.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentrl.algorithms import make_algorithm
from agentrl.training import Actor, Critic, CriticSpec, DistSpec, OptimSpec, merge_columns
from agentrl.types import Batch, SegmentKind, Stats
from tests.training.harness import (
    make_actor,
    make_batch,
    update,
    update_shards,
    write_model,
)

GOLDEN = Path(__file__).parent / "golden"
STEPS = 50
NAMES = ("policy/loss", "optim/grad_norm", "policy/entropy")
RATIO = (*NAMES, "policy/kl_old", "mismatch/logp_abs")
VALUE = ("loss", "value", "return", "error_sq", "optim/grad_norm")

Curve = list[dict[str, float]]


def sft_curve(model_path: str) -> Curve:
    optim = OptimSpec(
        name="muon", lr=2e-3, warmup_steps=5, schedule="linear", flat_fraction=0.5
    )
    actor = make_actor(model_path, "sft", optim=optim, total_steps=STEPS, dtype="float64")
    steps = [
        update(actor, make_batch(kind=SegmentKind.TARGET, seed=step))
        for step in range(STEPS)
    ]
    return [chosen(step, NAMES) for step in steps]


def grpo_curve(model_path: str) -> Curve:
    actor = make_actor(model_path, "grpo", optim=OptimSpec(lr=3e-4), dtype="float64")
    curve: Curve = []
    for seed in range(STEPS // 2):
        batch = joined(
            actor, make_batch(seed=seed, temperature=0.9), "logprobs", "advantages"
        )
        curve += [chosen(update(actor, batch), RATIO) for _ in range(2)]
    return curve


def ppo_curve(model_path: str) -> Curve:
    optim = OptimSpec(lr=3e-4)
    actor = make_actor(model_path, "ppo", optim=optim, dtype="float64")
    spec = CriticSpec(
        model_path, make_algorithm("ppo"), optim, head_seed=5, dtype="float64"
    )
    critic = Critic(spec, DistSpec())
    curve: Curve = []
    for seed in range(STEPS // 2):
        batch = joined(critic, make_batch(seed=seed, temperature=0.9), "values")
        batch = joined(actor, batch, "logprobs", "advantages")
        for _ in range(2):
            (shard,) = update_shards(actor, batch, 64, 1)
            values = chosen(critic.update(shard), VALUE)
            curve.append(
                chosen(actor.update(shard), RATIO)
                | {f"critic/{name}": value for name, value in values.items()}
            )
    return curve


def joined(role: Actor | Critic, batch: Batch, *methods: str) -> Batch:
    """The batch with the columns of a role's passes."""
    for method in methods:
        parts = update_shards(role, batch, 64, 1)
        found = getattr(role, method)(parts[0])
        batch = batch.join(merge_columns([found], parts, batch.cu_seqlens))
    return batch


def chosen(step: Stats, names: Sequence[str]) -> dict[str, float]:
    means = step.means()
    return {name: means[name] for name in names}


CURVES: dict[str, Callable[[str], Curve]] = {
    "sft": sft_curve,
    "grpo": grpo_curve,
    "ppo": ppo_curve,
}


@pytest.mark.parametrize("name", list(CURVES))
def test_the_curve_is_the_recorded_one(model_path: str, name: str) -> None:
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    for step, (got, expected) in enumerate(
        zip(CURVES[name](model_path), recorded, strict=True)
    ):
        # torch's kernels without AVX draw other last bits of the first weights, which move curves
        # by 1e-6; with the same weights they differ by 1e-14
        assert got == pytest.approx(expected, rel=2e-6, abs=1e-7), f"step {step}"
    assert len(recorded) == STEPS
    assert all(np.isfinite(list(row.values())).all() for row in recorded)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_model(Path(folder)))
        for curve_name, curve_of in CURVES.items():
            text = json.dumps(curve_of(path), indent=1)
            (GOLDEN / f"{curve_name}.json").write_text(text + "\n")
