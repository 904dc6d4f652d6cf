"""A run over two ranks that hold layers or rows together learns as one process does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.forks import finish
from tests.run.tiny_run import CONFIG, TASK, metrics, start

SHORT = [
    "run.deterministic=false",
    f"model.build={TASK}:build_even_model",
    "stages.warmup.steps=3",
    "stages.rl.eval.every=null",
    "train.steps=2",
]


def train(folder: Path, *overrides: str) -> Sequence[dict[str, Any]]:
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    driver = start(folder / "config.yaml", folder / "run", overrides=(*SHORT, *overrides))
    finish(driver)
    return [row for row in metrics(folder / "run") if row["step"]]


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Sequence[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("inline"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", ["placement.tp_size=2", "placement.sp_size=2", "rollout.sleep=true"]
)
def test_a_run_of_two_ranks_has_the_curve_of_one(
    inline: Sequence[dict[str, Any]], tmp_path: Path, layout: str
) -> None:
    found = train(tmp_path, "placement.mode=ray", "placement.world_size=2", layout)
    assert [(row["stage"], row["step"]) for row in found] == [
        (row["stage"], row["step"]) for row in inline
    ]
    assert {row["stage"] for row in found} == {"warmup", "rl"}
    for name in ("policy/loss", "optim/grad_norm"):
        # Muon makes more of a gradient's rounding, and the policy plays by what was learned
        assert [row[name] for row in found] == pytest.approx(
            [row[name] for row in inline], rel=1e-3, abs=1e-4
        )
