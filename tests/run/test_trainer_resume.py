"""A deterministic run equals the same run killed and resumed, metric for metric (invariant 15)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from tests.kit.forks import finish
from tests.kit.waiting import until
from tests.run.tiny_run import CONFIG, descendants, metrics, name_of, start, states

pytestmark = pytest.mark.slow


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
def run_dir(config: Path, request: pytest.FixtureRequest) -> Path:
    return config.parent / request.node.name.replace("[", "-").rstrip("]")


def annotations(run_dir: Path) -> dict[tuple[str, int, str], dict[str, bytes]]:
    """The arrays of each trained trajectory, by stage, step and id; what a resume took back is not
    there."""
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    found = list(reader.annotations())
    by_key = {(str(one.values["stage"]), one.step, one.trajectory_id): one for one in found}
    assert len(by_key) == len(found) > 0
    return {
        key: {name: array.tobytes() for name, array in one.arrays.items()}
        for key, one in by_key.items()
    }


SERVICE = "agentrl.controller.rollout_service:RolloutService"
STAGE = "agentrl.controller.stage.stage_run:StageRun"
CHECKPOINTS = "agentrl.controller.checkpoints:Checkpoints"


@pytest.mark.parametrize(
    ("die_at", "call"),
    [
        pytest.param("agentrl.run.trainer:run_stage", 0, id="before_the_first_step"),
        pytest.param(f"{STAGE}.record", 0, id="before_the_first_checkpoint"),
        pytest.param(f"{CHECKPOINTS}.commit", 0, id="during_the_first_checkpoint"),
        pytest.param(
            f"{STAGE}.finish",
            0,
            id="before_the_first_stage_is_exported",
            marks=pytest.mark.wide,
        ),
        pytest.param("agentrl.run.trainer:run_stage", 1, id="between_the_stages"),
        pytest.param(
            f"{STAGE}.record",
            12,
            id="before_the_first_checkpoint_of_the_second_stage",
            marks=pytest.mark.wide,
        ),
        pytest.param(f"{SERVICE}._enter", 10, id="while_groups_are_played"),
        pytest.param(
            f"{SERVICE}.mark_trained",
            3,
            id="when_a_batch_was_trained_and_not_recorded",
            marks=pytest.mark.invariant,
        ),
        pytest.param(f"{STAGE}.record", 14, id="between_two_checkpoints"),
        pytest.param(f"{CHECKPOINTS}.commit", 7, id="during_a_checkpoint"),
        pytest.param(
            "agentrl.run.trainer:write_json",
            0,
            id="before_the_summary",
            marks=pytest.mark.wide,
        ),
        pytest.param(
            "agentrl.store:JsonlWriter.append",
            40,
            id="before_a_line",
            marks=pytest.mark.wide,
        ),
        pytest.param("agentrl.store:JsonlWriter.append", 75, id="before_a_later_line"),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    config: Path, run_dir: Path, uninterrupted: list[dict[str, Any]], die_at: str, call: int
) -> None:
    finish(start(config, run_dir, die_at=die_at, call=call), -signal.SIGKILL)
    finish(start(config, run_dir, resume=True))
    assert metrics(run_dir) == uninterrupted
    assert annotations(run_dir) == annotations(config.parent / "whole")
    assert states(run_dir)["trained"] == 60
    assert set(states(run_dir)) <= {"trained", "rolled_back"}


def test_a_correction_that_began_goes_on_after_a_kill(config: Path, run_dir: Path) -> None:
    differs = (
        "rollout.dtype=bfloat16",
        "stages.rl.algorithm.rollout_correction.above=1e-9",
    )
    whole = config.parent / "corrected"
    finish(start(config, whole, overrides=differs))
    # behind the checkpoint of the step in which it began
    die_at = f"{STAGE}.record"
    finish(
        start(config, run_dir, overrides=differs, die_at=die_at, call=15), -signal.SIGKILL
    )
    finish(start(config, run_dir, overrides=differs, resume=True))
    assert metrics(run_dir) == metrics(whole)
    weighed = [
        "mismatch/weight" in row
        for row in metrics(run_dir)
        if row["stage"] == "rl" and row["step"]
    ]
    assert weighed == [False, True, True, True, True]
    told = [record.get("event") for record in read_jsonl(run_dir / "logs" / "driver.jsonl")]
    assert told.count("rollout_correction") == 1


def test_a_run_killed_again_and_again_comes_to_the_same_end(
    config: Path, run_dir: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    finish(start(config, run_dir, die_at=f"{STAGE}.record", call=15), -signal.SIGKILL)
    finish(
        start(config, run_dir, resume=True, die_at=f"{SERVICE}._enter", call=1),
        -signal.SIGKILL,
    )
    finish(
        start(config, run_dir, resume=True, die_at=f"{CHECKPOINTS}.commit", call=0),
        -signal.SIGKILL,
    )
    finish(start(config, run_dir, resume=True))
    assert metrics(run_dir) == uninterrupted
    assert states(run_dir)["trained"] == 60


def test_a_finished_run_is_left_as_it_is_by_a_resume(
    config: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    run_dir = config.parent / "whole"
    finish(start(config, run_dir, resume=True))
    assert metrics(run_dir) == uninterrupted
    assert states(run_dir) == {"trained": 60}


def test_a_finished_run_goes_on_to_more_steps(
    config: Path, run_dir: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    finish(start(config, run_dir, overrides=["stages.rl.steps=4"]))
    finish(start(config, run_dir, resume=True))
    assert [row for row in metrics(run_dir) if row["step"] == 5] == [
        row for row in uninterrupted if row["step"] == 5
    ]


@pytest.mark.invariant
def test_the_same_through_ray(
    config: Path, run_dir: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    ray = ["placement.mode=ray"]
    driver = start(config, run_dir, overrides=ray)
    while driver.is_alive() and not any(
        row["step"] == 3 and row["stage"] == "rl" for row in metrics(run_dir)
    ):
        driver.join(0.02)
    started = descendants(driver.pid)
    driver.kill()
    finish(driver, -signal.SIGKILL)
    wait_for_end(started)
    finish(start(config, run_dir, resume=True, overrides=ray))
    assert metrics(run_dir) == uninterrupted


def wait_for_end(pids: set[int]) -> None:
    """Until none is left but Ray's own agents, which hold nothing of the run and try for a minute
    to report.
    """
    assert len(pids) >= 3  # Ray's own, and the worker

    def left() -> list[str]:
        return [name for name in map(name_of, pids) if name and not name.endswith("Agent")]

    until(lambda: not left(), left)
