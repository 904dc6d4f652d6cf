"""Steps in which nothing could be learned say so, and the summary counts them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentrl import EpisodeView, Trainer, load_config
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.store.annotations.columns import LOSS_REASONS
from tests.run.tiny_run import CONFIG

QUICK = (
    "run.deterministic=false",
    "stages.warmup.steps=2",
    "stages.rl.steps=2",
    "stages.rl.eval.sets={}",
)


def constant(episode: EpisodeView) -> float:
    return 1.0


def shown(tmp_path: Path, *overrides: str, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    config = load_config(
        tmp_path / "config.yaml", [f"run.dir={tmp_path / 'run'}", *QUICK, *overrides]
    )
    with Trainer(config, reward=constant, console=console) as trainer:
        trainer.train()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("kept", ["true", "false"], ids=["dropped", "trained"])
def test_a_step_of_equal_rewards_says_so_in_its_line(tmp_path: Path, kept: str) -> None:
    lines = shown(
        tmp_path,
        f"stages.rl.algorithm.filter_zero_variance={kept}",
        "stages.rl.rollout.max_resample_ratio=0.0",
    )
    steps = [line for line in lines if line.lstrip().startswith(("1/2", "2/2"))]
    assert [line.endswith("no signal: 3 of 3 groups equal") for line in steps] == [
        False,
        False,
        True,
        True,
    ]
    assert "! 2 of 2 steps had no signal" in "\n".join(lines)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["steps_without_signal"]) == (2, 2)
    found = TrajectoryReader(RunDirectory.open(tmp_path / "run")).annotations(stage="rl")
    reasons = {reason for one in found for reason in one.arrays["loss_reason"].tolist()}
    assert {LOSS_REASONS[reason] for reason in reasons} == {
        "filtered" if kept == "true" else "trained"
    }
