"""A run that ends for gradients that are not finite leaves a script that repeats each of them."""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agentrl import EpisodeView
from agentrl.errors import TrainingError
from agentrl.store import read_jsonl
from tests.run.tiny_run import train
from tests.run.tiny_task import graded

QUICK = (
    "run.deterministic=false",
    "stages.warmup.steps=2",
    "stages.rl.steps=9",
    "stages.rl.eval.sets={}",
    "stages.rl.algorithm.scale_rewards=none",
    "checkpoint.every=null",
)


def huge(episode: EpisodeView) -> float:
    """A reward that is finite, as a gradient of it is not."""
    return 1e30 * graded(episode)


@pytest.mark.slow
def test_the_script_of_a_skipped_step_repeats_it_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(
        TrainingError, match=r"then lower optim\.lr or optim\.clip_grad_norm"
    ):
        train(tmp_path, *QUICK, reward=huge, console=console)
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["optim/not_finite"] for row in rows] == [1.0, 1.0, 1.0]
    assert (run / "checkpoints" / "rl" / "step=000003" / "manifest.json").is_file()
    scripts = sorted((run / "skipped_steps" / "rl").glob("*/repeat.py"))
    assert len(scripts) == 3

    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [str(scripts[1])])
    runpy.run_path(str(scripts[1]), run_name="__main__")
    told = capsys.readouterr().out
    assert "optim/not_finite = 1.0" in told
    assert "token_loss: " in told
