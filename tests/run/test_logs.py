"""The logs of a run: each process keeps its own, and the driver's has the run's events."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, read_jsonl
from tests.run.tiny_run import CONFIG

SHORT = ("stages.rl.steps=1", "stages.warmup.steps=1", "stages.rl.eval.every=null")


def events(path: Path) -> list[str]:
    return [row["event"] for row in read_jsonl(path) if "event" in row]


def train(tmp_path: Path, *overrides: str) -> RunDirectory:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    run = RunDirectory(tmp_path / "run")
    config = load_config(tmp_path / "config.yaml", [f"run.dir={run.root}", *SHORT, *overrides])
    with Trainer(config) as trainer:
        trainer.train()
    return run


def test_a_run_in_one_process_keeps_the_drivers_log(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert [path.name for path in run.log_folder.iterdir()] == ["driver.jsonl"]
    found = events(run.log_folder / "driver.jsonl")
    assert {"checkpoint_written", "weights_published"} <= set(found)


@pytest.mark.slow
def test_each_rank_and_rollout_worker_keeps_its_own(tmp_path: Path) -> None:
    run = train(
        tmp_path, "placement.mode=ray", "placement.rollout_workers=1", "run.deterministic=false"
    )
    names = {path.stem for path in run.log_folder.iterdir()}
    assert names == {"driver", "rank-0", "rollout-0"}
    assert "worker_joined" in events(run.log_folder / "driver.jsonl")
