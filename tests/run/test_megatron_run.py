"""A GRPO run on the Megatron backend has the curve of fsdp2, with a reference beside the actor and
each version published to the engines of both ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.forks import finish
from tests.run.tiny_run import CONFIG, TASK, metrics, start

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

STEPS = 20
SHORT = [
    "run.deterministic=false",
    f"model.build={TASK}:build_staged_model",
    "stages.warmup.optim={name: adamw, lr: 1.0e-2}",
    "stages.warmup.steps=3",
    "stages.rl.eval.every=null",
    f"train.steps={STEPS}",
    "checkpoint.every=null",
    "stages.rl.algorithm.kl_coef=0.1",
]
MEGATRON = "train.backend=tests.run.megatron_on_cpu:MegatronBackend"
STAGES = ("placement.mode=ray", "placement.world_size=2", "placement.pp_size=2")
CURVE = ("policy/loss", "reward/mean", "optim/grad_norm")


def train(folder: Path, *overrides: str) -> Sequence[dict[str, Any]]:
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    finish(start(folder / "config.yaml", folder / "run", overrides=(*SHORT, *overrides)))
    rows = metrics(folder / "run")
    return [row for row in rows if row["stage"] == "rl" and row["step"]]


@pytest.mark.slow
def test_a_run_of_two_stages_has_the_curve_of_fsdp2(tmp_path: Path) -> None:
    curves = []
    for name, overrides in {"fsdp2": (), "megatron": (MEGATRON, *STAGES)}.items():
        (tmp_path / name).mkdir()
        curves.append(train(tmp_path / name, *overrides))
    expected, found = curves
    assert len(found) == len(expected) == STEPS
    for name in CURVE:
        own = [row[name] for row in expected]
        # a curve, and no line
        assert len(set(own)) > STEPS / 2, name
        assert [row[name] for row in found] == pytest.approx(own, rel=1e-3, abs=1e-3), name
