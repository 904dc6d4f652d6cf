"""A run whose tasks are a mixture of weighted sources goes on after a kill in the same order."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryReader
from tests.kit.forks import finish
from tests.run.tiny_run import CONFIG, TASK, metrics, start

pytestmark = pytest.mark.slow

STEPS = 4
BATCH = 3
SOURCES = f"""
  train:
    - {{data: "{TASK}:tasks", name: near, weight: 2.0, args: {{split: near, num_tasks: 5}}}}
    - {{data: "{TASK}:tasks", name: far, args: {{split: far, num_tasks: 3}}}}
  max_prompt_tokens: 64
"""
OVERRIDES = (
    f"train.steps={STEPS}",
    "rollout.max_response_tokens=40",
    "rollout.max_turns=1",
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "config.yaml"
    alone, _, _ = CONFIG.partition("stages:")
    head, data, rest = alone.partition("data: ")
    path.write_text(f"{head}{data}{SOURCES}{rest.partition(chr(10))[2]}", encoding="utf-8")
    return path


def drive(config: Path, run_dir: Path, *, resume: bool = False, die_at: str = "") -> None:
    driver = start(
        config, run_dir, resume=resume, die_at=die_at, call=2, overrides=OVERRIDES
    )
    finish(driver, -signal.SIGKILL if die_at else 0)


def task_ids(run_dir: Path) -> list[str]:
    """The tasks of the run's groups, in the order in which they were drawn."""
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    found = {one.group_index: one.task_id for one in reader.summaries()}
    return [found[index] for index in sorted(found)]


def test_tasks_come_in_the_order_of_a_run_that_was_not_killed(
    config: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    drive(config, whole)
    drive(config, killed, die_at="agentrl.controller.stage.stage_run:StageRun.record")
    assert len(metrics(killed)) < STEPS
    drive(config, killed, resume=True)

    order = task_ids(whole)
    trained = [task.partition("/")[0] for task in order[: STEPS * BATCH]]
    assert (trained.count("near"), trained.count("far")) == (8, 4)  # 2 : 1
    assert len(set(order)) == 5 + 3 < len(order)  # each source began again
    assert task_ids(killed) == order
    assert metrics(killed) == metrics(whole)
