"""A run with ``store.keep``: training, evaluation and a resume with fewer trajectories on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryReader
from tests.run.tiny_run import train

pytestmark = pytest.mark.slow


def test_a_resumed_run_goes_on_though_old_steps_are_dropped(tmp_path: Path) -> None:
    for newest in (3, 5):
        fewer = ("store.keep.last_steps=1", f"stages.1.train.steps={newest}")
        train(tmp_path, *fewer, "run.deterministic=false", resume=newest > 3)
        run = RunDirectory.open(tmp_path / "run")
        reader = TrajectoryReader(run)
        assert {one.step for one in reader.summaries(purpose="train")} == {newest}
        kept = reader.kept_by_stage()["rl"]
        assert list(kept) == list(range(1, newest))
        assert len(reader.summaries(purpose="eval")) > 0
        learned = {one.trajectory_id for one in reader.annotations(stage="rl")}
        assert learned == {one.id for one in reader.summaries(purpose="train")}
        assert reader.damage == []
