"""Whole runs whose engine and trainer have a device's memory in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store import read_jsonl
from tests.run.test_ppo_run import PPO
from tests.run.tiny_run import metrics, train

SHORT = ("train.steps=2", "stages.0.steps=1", "rollout.max_turns=1", "checkpoint.every=1")


@pytest.mark.slow
def test_no_number_changes_where_the_engine_sleeps(tmp_path: Path) -> None:
    # while a critic warms up no policy changes: an engine that slept is sent its weights all the
    # same
    for sleep in ("true", "false"):
        train(tmp_path, *PPO, *SHORT, f"rollout.sleep={sleep}", name=sleep)
    slept, awake = (metrics(tmp_path / sleep) for sleep in ("true", "false"))
    assert slept == awake
    rows = [
        row
        for row in read_jsonl(tmp_path / "true" / "metrics.jsonl")
        if "time/step_s" in row
    ]
    rows = [row for row in rows if row["stage"] == "rl"]
    assert [row["policy_version"] for row in rows] == [0, 1]
    assert all(row["time/engine_wake_s"] > 0 for row in rows)
