"""A seeded curve at full precision: a change that should not alter numbers shows the same curve.

``python -m tests.training.test_loss_curve`` writes it anew, for a change that should.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from agentrl.training import OptimSpec
from agentrl.types import SegmentKind
from tests.training.harness import make_actor, make_batch, prepared, update, write_model

GOLDEN = Path(__file__).parent / "golden" / "loss_curve.json"
NAMES = ("policy/loss", "optim/grad_norm", "policy/entropy")


def sft_curve(model_path: str) -> list[dict[str, float]]:
    optim = OptimSpec(name="muon", lr=2e-3, warmup_steps=2, schedule="linear", flat_fraction=0.5)
    actor = make_actor(model_path, "sft", optim=optim, total_steps=6)
    means = [
        update(actor, make_batch(kind=SegmentKind.TARGET, seed=step)).means() for step in range(6)
    ]
    return [{name: step[name] for name in NAMES} for step in means]


def grpo_curve(model_path: str) -> list[dict[str, float]]:
    actor = make_actor(model_path, "grpo", optim=OptimSpec(lr=3e-4))
    means = []
    for step in range(3):
        batch = prepared(actor, make_batch(seed=step, temperature=0.9))
        means += [update(actor, batch).means() for _ in range(2)]
    return [
        {name: step[name] for name in (*NAMES, "policy/kl_old", "mismatch/logp_abs")}
        for step in means
    ]


CURVES = {"sft": sft_curve, "grpo": grpo_curve}


@pytest.mark.parametrize("name", ["sft", "grpo"])
def test_the_curve_is_the_recorded_one(model_path: str, name: str) -> None:
    recorded = json.loads(GOLDEN.read_text())[name]
    for step, (got, expected) in enumerate(zip(CURVES[name](model_path), recorded, strict=True)):
        # 16 units in the last place of float32; the kernels of other processors were seen to differ
        # by 2
        assert got == pytest.approx(expected, rel=2e-6, abs=1e-6), f"step {step}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_model(Path(folder)))
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(
            json.dumps({name: curve(path) for name, curve in CURVES.items()}, indent=1) + "\n"
        )
