"""Whole runs whose tasks a sampler chooses: a kill changes nothing, and rollouts that run ahead
observe late.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import DataError
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from tests.kit.forks import finish
from tests.run.tiny_run import CONFIG, metrics, start, states

pytestmark = pytest.mark.slow

QUICK = ("stages.warmup.steps=4", "stages.rl.eval.sets={}")
SERVICE = "agentrl.controller.rollout_service:RolloutService"
OWN = """\
class LeastPlayed:
    \"\"\"The task that has finished the fewest episodes.\"\"\"

    def __init__(self, tasks, seed, bonus=0):
        self.played = [0] * len(tasks)

    def next(self):
        index = self.played.index(min(self.played))
        self.played[index] += 1
        return index

    def observe(self, task_index, outcome):
        self.played[task_index] += len(outcome.group.finished)

    def state(self):
        return self.played

    def load(self, state):
        self.played = state
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curricula")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    path = folder / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def played(run_dir: Path) -> list[tuple[int, str]]:
    """Group and task of every trajectory of the stage that plays, what was rolled back left out."""
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    return sorted(
        {(one.group_index, one.task_id) for one in reader.summaries(purpose="train")}
    )


def test_a_killed_run_draws_what_it_would_have_drawn(config: Path) -> None:
    overrides = (*QUICK, "data.sampler={name: signal, decay: 0.5}")
    whole, killed = config.parent / "whole", config.parent / "killed"
    finish(start(config, whole, overrides=overrides))
    die_at = f"{SERVICE}._enter"
    finish(
        start(config, killed, die_at=die_at, call=10, overrides=overrides), -signal.SIGKILL
    )
    finish(start(config, killed, resume=True, overrides=overrides))
    assert metrics(killed) == metrics(whole)
    assert played(killed) == played(whole)


def test_rollouts_that_run_ahead_observe_each_draw(config: Path) -> None:
    run_dir = config.parent / "ahead"
    overrides = [
        *QUICK,
        f"run.dir={run_dir}",
        "run.deterministic=false",
        "rollout.schedule=async",
        "stages.rl.algorithm={name: grpo, rollout_correction: {level: token}}",
        "data.sampler=own.py:LeastPlayed",
    ]
    with Trainer(load_config(config, overrides)) as trainer:
        trainer.train()
    assert states(run_dir)["trained"] == 60
    found = {task for _, task in played(run_dir)}
    assert found == {f"train-{n}" for n in range(12)}


def test_a_sampler_that_yields_nothing_ends_the_run_by_name(config: Path) -> None:
    (config.parent / "ending.py").write_text(
        OWN + "\n\ndef ending(tasks, seed):\n"
        "    own = LeastPlayed(tasks, seed)\n    own.next = lambda: None\n    return own\n"
    )
    run_dir = config.parent / "ending"
    overrides = [*QUICK, f"run.dir={run_dir}", "data.sampler=ending.py:ending"]
    told = r"^data\.sampler\.name='ending\.py:ending': next\(\) must"
    with (
        Trainer(load_config(config, overrides)) as trainer,
        pytest.raises(DataError, match=told),
    ):
        trainer.train()
