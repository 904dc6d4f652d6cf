"""Checkpoints that are written beside the steps: one that cannot be leaves the one before, and the
run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.controller.checkpoints import Checkpoints
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.errors import DiskFullError
from agentrl.store import RunDirectory
from agentrl.training.fsdp import checkpoint
from tests.controller.replay import learn


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """No tensor of these steps' checkpoints can be written."""
    put = checkpoint._HashedFile._put

    def refuse(file: Any, data: Any) -> int:
        if any(f"step={step:06d}" in str(file.name) for step in steps):
            raise OSError(28, "No space left on device")
        return put(file, data)

    monkeypatch.setattr(checkpoint._HashedFile, "_put", refuse)


def checkpoints(run: Path) -> Checkpoints:
    return Checkpoints(run / "checkpoints" / "rl", keep_last=1)


@pytest.mark.slow
def test_a_full_disk_at_a_checkpoint_is_told_and_the_run_goes_on(
    group: LocalRoleGroup,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    undisturbed = learn(group, model, tmp_path / "other", num_steps=4)
    fill_the_disk(monkeypatch, 2)
    rows = learn(group, model, tmp_path / "run", num_steps=4, checkpoint_every=1)
    assert [row["policy/loss"] for row in rows] == [
        row["policy/loss"] for row in undisturbed
    ]
    counts = [row.get("count/failed_checkpoints", 0) for row in rows]
    assert counts in ([0, 0, 1, 0], [0, 0, 0, 1])  # as soon as it is known
    failed = [
        one for one in caplog.records if getattr(one, "event", "") == "checkpoint_failed"
    ]
    (told,) = failed
    assert "there is no checkpoint" in told.getMessage()
    assert "step=000002; the one before stays and the run goes on: " in told.getMessage()
    assert "the disk is full" in told.getMessage()
    events = RunDirectory.open(tmp_path / "run").events_path.read_text(encoding="utf-8")
    (event,) = [
        one for one in map(json.loads, events.splitlines()) if one["boundary"] == "store"
    ]
    assert (event["event"], event["level"]) == ("checkpoint_failed", "warning")
    found = checkpoints(tmp_path / "run").latest()
    assert found is not None
    assert found[1].state.step == 4
    checkpoint.check_whole(found[0] / "actor")


def test_the_last_good_checkpoint_stays_where_all_later_ones_fail(
    group: LocalRoleGroup, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_the_disk(monkeypatch, 2, 3)
    # nothing would keep the last step
    with pytest.raises(DiskFullError, match="the disk is full"):
        learn(group, model, tmp_path / "run", num_steps=3, checkpoint_every=1)
    found = checkpoints(tmp_path / "run").latest()
    assert found is not None
    assert found[1].state.step == 1
    checkpoint.check_whole(found[0] / "actor")
    assert [path.name for path in (tmp_path / "run" / "checkpoints" / "rl").iterdir()] == [
        "step=000001"
    ]
