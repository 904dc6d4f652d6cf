"""`agentrl train` over two ranks that hold layers or rows together learns as one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.run.tiny_run import CONFIG, TASK, metrics

REPOSITORY = Path(__file__).parents[2]
SHORT = [
    f"model.build={TASK}:build_even_model",
    "stages.warmup.steps=6",
    "stages.rl.eval.every=null",
    "train.steps=2",
]


def train(folder: Path, *overrides: str) -> Sequence[dict[str, Any]]:
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    told = subprocess.run(
        [
            *(sys.executable, "-m", "agentrl", "train", str(folder / "config.yaml")),
            *(f"run.dir={folder / 'run'}", *SHORT, *overrides),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return [row for row in metrics(folder / "run") if row["step"]]


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Sequence[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("inline") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["placement.tp_size=2", "placement.sp_size=2"])
def test_a_run_of_two_ranks_has_the_curve_of_one(
    inline: Sequence[dict[str, Any]], tmp_path: Path, layout: str
) -> None:
    found = train(tmp_path / "run", "placement.mode=ray", "placement.world_size=2", layout)
    assert [(row["stage"], row["step"]) for row in found] == [
        (row["stage"], row["step"]) for row in inline
    ]
    assert {row["stage"] for row in found} == {"warmup", "rl"}
    for name in ("policy/loss", "optim/grad_norm"):
        # Muon makes more of a gradient's rounding, and the policy plays by what was learned
        assert [row[name] for row in found] == pytest.approx(
            [row[name] for row in inline], rel=1e-3, abs=1e-4
        )
