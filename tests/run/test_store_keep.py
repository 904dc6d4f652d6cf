"""A run with ``store.keep``: training, evaluation and a resume with fewer trajectories on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from tests.run.tiny_run import CONFIG

pytestmark = pytest.mark.slow


def test_a_resumed_run_goes_on_though_old_steps_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    fewer = [f"run.dir={tmp_path / 'run'}", "store.keep.last_steps=1", "run.deterministic=false"]
    for more, newest in (["stages.1.train.steps=3"], 3), (["stages.1.train.steps=5"], 5):
        with Trainer(load_config(file, [*fewer, *more])) as trainer:
            trainer.train(resume=newest > 3)
        run = RunDirectory.open(tmp_path / "run")
        reader = TrajectoryReader(run)
        assert {one.step for one in reader.summaries(purpose="train")} == {newest}
        kept = reader.kept_by_stage()["rl"]
        assert list(kept) == list(range(1, newest))
        assert len(reader.summaries(purpose="eval")) > 0
        learned = {one.trajectory_id for one in reader.annotations(stage="rl")}
        assert learned == {one.id for one in reader.summaries(purpose="train")}
        assert reader.damage == []
