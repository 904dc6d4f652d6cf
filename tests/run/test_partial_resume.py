"""What outlives a kill in an asynchronous run: episodes in flight at a checkpoint, and those of a
rollout worker.
"""

from __future__ import annotations

import os
import shutil
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from agentrl.controller.checkpoints import Checkpoints
from agentrl.rollouts import GroupState
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from agentrl.types import Trajectory
from tests.kit.forks import finish
from tests.kit.waiting import until
from tests.run.tiny_run import CONFIG, descendants, start, states

pytestmark = pytest.mark.slow

TASK = Path(__file__).with_name("long_task.py")
OVERRIDES = (
    "run.deterministic=false",
    "rollout.schedule=async",
    "rollout.max_staleness=4",
    "rollout.max_running=16",
    "rollout.max_turns=12",
    "rollout.max_turn_tokens=8",
    "rollout.max_response_tokens=300",
    "checkpoint.every=1",
    "checkpoint.keep_last=99",
    "stages.warmup.steps=2",
    "stages.rl.steps=999",
    "stages.rl.eval.sets={}",
    f'stages.rl.env.entry_point="{TASK}:Long"',
    "stages.rl.env.tools=[]",
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    rl = "  - name: rl\n"
    path.write_text(
        CONFIG.replace(
            rl, f"{rl}    algorithm: {{name: grpo, rollout_correction: {{level: token}}}}\n"
        ),
        encoding="utf-8",
    )
    return path


def newest(run_dir: Path) -> tuple[int, tuple[GroupState, ...]]:
    """The step of the newest checkpoint, and what it holds of episodes in flight."""
    found = Checkpoints(run_dir / "checkpoints" / "rl", keep_last=0).latest()
    return (0, ()) if found is None else (found[1].state.step, found[1].rollouts.running)


def in_flight(run_dir: Path) -> dict[tuple[int, int], Any]:
    """The episodes that the newest checkpoint lets go on, by group and rollout."""
    return {
        (group.group_index, n): one
        for group in newest(run_dir)[1]
        for n, one in enumerate(group.rollouts)
        if one in group.resumable
    }


def begun_earlier(run_dir: Path) -> set[tuple[int, int]]:
    """Those of them that have tokens of a version before the checkpoint's."""
    step = newest(run_dir)[0]
    return {
        key
        for key, one in in_flight(run_dir).items()
        for turn in one.turns
        for segment in turn.completion
        if segment.policy_version is not None and segment.policy_version < step
    }


def stored(run_dir: Path) -> list[Trajectory]:
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    return [reader.get(summary.id).trajectory for summary in reader.summaries()]


def trained_draws(run_dir: Path) -> list[tuple[int, int]]:
    """Draw and sibling of each trajectory that was trained and not rolled back."""
    state: dict[tuple[int, int, int], str] = {}
    for row in read_jsonl(run_dir / "ledger.jsonl"):
        state |= {
            (row["attempt"], row["group_index"], rollout_index): row["to"]
            for rollout_index in row["rollout_indices"]
        }
    return [key[1:] for key, to in state.items() if to == "trained"]


def stopped_in_flight(driver: BaseProcess, run_dir: Path) -> bool:
    """Whether the driver stands still, and its newest checkpoint has what began before it.

    A later checkpoint cannot come between the look and the kill.
    """
    if not begun_earlier(run_dir):
        return False
    os.kill(driver.pid or 0, signal.SIGSTOP)
    if begun_earlier(run_dir):
        return True
    os.kill(driver.pid or 0, signal.SIGCONT)
    return False


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param((), id="inline", marks=pytest.mark.invariant),
        pytest.param(("placement.mode=ray",), id="ranks"),
        pytest.param(("placement.mode=ray", "placement.rollout_workers=2"), id="workers"),
    ],
)
def test_episodes_in_flight_go_on_after_a_kill_with_their_tokens(
    config: Path, tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    run_dir, overrides = tmp_path / "run", (*OVERRIDES, *hosts)
    driver = start(config, run_dir, overrides=overrides)
    try:
        until(lambda: not driver.is_alive() or stopped_in_flight(driver, run_dir))
    finally:
        driver.kill()
    finish(driver, -signal.SIGKILL)
    resumable, earlier = in_flight(run_dir), begun_earlier(run_dir)

    # η + 1 batches take all that may be in flight at once; for fewer, some draws would be left out
    steps = newest(run_dir)[0] + 5
    finish(
        start(
            config, run_dir, resume=True, overrides=(*overrides, f"stages.rl.steps={steps}")
        )
    )
    rows = [row for row in read_jsonl(run_dir / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert sum(row.get("count/resumed_episodes", 0) for row in rows) >= len(resumable)

    trained = trained_draws(run_dir)
    assert len(trained) == len(set(trained)), "a trajectory was trained twice"
    assert not states(run_dir).keys() & {"running", "finished", "buffered", "taken"}

    trajectories = {
        (t.group_index, t.rollout_index): t for t in stored(run_dir) if t.status.finished
    }
    extended = [key for key in resumable if key in trajectories]
    assert extended
    for key in extended:
        before, after = resumable[key], trajectories[key]
        assert [turn.text for turn in after.turns[: len(before.turns)]] == [
            turn.text for turn in before.turns
        ]
        ids = after.sequence(len(after.turns) - 1)
        (seat,) = before.seats.values()
        assert ids[: seat.sequence.ids.size].tolist() == seat.sequence.ids.tolist()
        assert after.info["resumed_turns"] == len(before.turns)
        versions = after.policy_versions
        assert list(versions) == sorted(versions)
        assert len(set(versions)) > (key in earlier)


def test_a_rollout_worker_that_is_killed_in_a_step_costs_no_episode(
    config: Path, tmp_path: Path
) -> None:
    run_dir, held = tmp_path / "run", tmp_path / "held"
    task = shutil.copy(TASK.with_name("held_task.py"), tmp_path)
    overrides = (
        *(*OVERRIDES, "placement.mode=ray", "placement.rollout_workers=2"),
        *(
            "rollout.max_staleness=1",
            "stages.rl.steps=8",
        ),  # what is played last begins after step 2
        f'stages.rl.env.entry_point="{task}:Held"',
        "stages.rl.env.args={after: run/checkpoints/rl/step=000002/manifest.json}",
    )
    driver = start(config, run_dir, overrides=overrides)
    try:
        until(lambda: not driver.is_alive() or (held.exists() and held.read_text()))
        _, worker = held.read_text().split()
        assert int(worker) in descendants(driver.pid)
        os.kill(int(worker), signal.SIGKILL)
    except BaseException:
        driver.kill()
        raise
    finish(driver)

    rows = [row for row in read_jsonl(run_dir / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert sum(row.get("count/lost_workers", 0) for row in rows) == 1
    replayed = sum(row.get("count/replayed_groups", 0) for row in rows)
    (event,) = [
        row for row in read_jsonl(run_dir / "events.jsonl") if row["event"] == "worker_lost"
    ]
    assert replayed >= 1
    assert "died" in event["message"]
    assert f"its {replayed:.0f} groups are played again" in event["message"]

    trained = trained_draws(run_dir)
    assert (
        len(trained)
        == len(set(trained))
        == sum(row["count/trained_trajectories"] for row in rows)
    )
    assert states(run_dir).keys() <= {"trained", "cancelled", "dropped"}
    played = stored(run_dir)
    assert {t.attempt for t in played} == {0, 1}
    assert len({t.group_index for t in played if t.attempt == 1}) == replayed
    assert all(t.status.finished or t.status.kind == "cancelled" for t in played)
