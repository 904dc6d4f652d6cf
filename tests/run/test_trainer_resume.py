"""A deterministic run equals the same run killed and resumed, metric for metric (invariant 15)."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.tiny_run import CONFIG, metrics, start, states

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 240


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resumed") / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def uninterrupted(config: Path) -> list[dict[str, Any]]:
    run_dir = config.parent / "whole"
    finish(start(config, run_dir))
    rows = metrics(run_dir)
    assert [(row["stage"], row["step"]) for row in rows] == [
        *(("warmup", step) for step in range(1, 13)),
        *(("rl", step) for step in range(6)),
    ]
    assert max(row.get("turns/max", 0) for row in rows) > 1
    return rows


@pytest.fixture
def run_dir(config: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    yield config.parent / request.node.name.replace("[", "-").rstrip("]")


def finish(driver: subprocess.Popen[str], status: int = 0) -> None:
    try:
        output, _ = driver.communicate(timeout=DEADLINE_S)
    finally:
        driver.kill()
    assert driver.returncode == status, output


SERVICE = "agentrl.controller.service:RolloutService"
STAGE = "agentrl.controller.stage:StageRun"
CHECKPOINTS = "agentrl.controller.checkpoints:Checkpoints"


@pytest.mark.parametrize(
    ("die_at", "call"),
    [
        pytest.param("agentrl.run.trainer:run_stage", 0, id="before_the_first_step"),
        pytest.param(f"{STAGE}.record", 0, id="before_the_first_checkpoint"),
        pytest.param(f"{CHECKPOINTS}.commit", 0, id="during_the_first_checkpoint"),
        pytest.param("agentrl.controller.stage:export_whole", 0, id="before_the_first_stage_is_exported"),
        pytest.param("agentrl.run.trainer:run_stage", 1, id="between_the_stages"),
        pytest.param(f"{STAGE}.record", 12, id="before_the_first_checkpoint_of_the_second_stage"),
        pytest.param(f"{SERVICE}._take_in", 10, id="while_groups_are_played"),
        pytest.param(f"{SERVICE}.mark_trained", 3, id="when_a_batch_was_trained_and_not_recorded"),
        pytest.param(f"{STAGE}.record", 14, id="between_two_checkpoints"),
        pytest.param(f"{CHECKPOINTS}.commit", 7, id="during_a_checkpoint"),
        pytest.param("agentrl.run.trainer:write_json", 0, id="before_the_summary"),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    config: Path, run_dir: Path, uninterrupted: list[dict[str, Any]], die_at: str, call: int
) -> None:
    finish(start(config, run_dir, die_at=die_at, call=call), -signal.SIGKILL)
    finish(start(config, run_dir, resume=True))
    assert metrics(run_dir) == uninterrupted
    assert states(run_dir)["trained"] == 60
    assert set(states(run_dir)) <= {"trained", "rolled_back"}
