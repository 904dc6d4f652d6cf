"""The logs of a run: each process keeps its own, and the driver's has the run's events."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store import RunDirectory, read_jsonl
from tests.run.tiny_run import train

SHORT = ("stages.rl.steps=1", "stages.warmup.steps=1", "stages.rl.eval.every=null")


def events(path: Path) -> list[str]:
    return [row["event"] for row in read_jsonl(path) if "event" in row]


def test_a_run_in_one_process_keeps_the_drivers_log(trained: RunDirectory) -> None:
    names = sorted(path.name for path in trained.log_folder.iterdir())
    assert names == ["driver.jsonl", "driver.stacks"]
    found = events(trained.log_folder / "driver.jsonl")
    assert {"checkpoint_written", "weights_published"} <= set(found)


@pytest.mark.slow
def test_each_rank_and_rollout_worker_keeps_its_own(tmp_path: Path) -> None:
    ray = ("placement.mode=ray", "placement.rollout_workers=1", "run.deterministic=false")
    run = RunDirectory(train(tmp_path, *SHORT, *ray))
    names = {path.stem for path in run.log_folder.iterdir()}
    assert names == {"driver", "rank-0", "rollout-0"}
    assert "worker_joined" in events(run.log_folder / "driver.jsonl")
    assert "weights_taken" in events(run.log_folder / "rollout-0.jsonl")
