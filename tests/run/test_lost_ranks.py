"""Ranks that die or are silent are started again within the run, from the newest checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agentrl.errors import CheckpointError, RankLostError
from agentrl.store import RunDirectory, read_jsonl
from tests.run.tiny_run import descendants, metrics, name_of, states, told, train

pytestmark = pytest.mark.slow

STAGE = "agentrl.controller.stage.stage_run.StageRun"
CHECKPOINTS = "agentrl.controller.checkpoints.Checkpoints"
GROUP = "agentrl.controller.cluster.ray_role_group.RayRoleGroup"
RESTARTS = "agentrl.run.lifetime.restarts.Restarts"
RAY = ("placement.mode=ray", "placement.threads_per_rank=1")
APART = (
    *RAY,
    "run.deterministic=false",
    "placement.world_size=2",
    "placement.rollout_workers=2",
    "rollout.schedule=one_step_off",
    "stages.rl.algorithm.rollout_correction.level=token",
    "stages.rl.eval.sets={}",
    "stages.warmup.steps=2",
    "checkpoint.asynchronous=false",
)


def kill(rank: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to a rank of this process's run, which is known by the log that it keeps."""
    ranks = [
        pid for pid in descendants(os.getpid()) if name_of(pid).startswith("ray::_Rank")
    ]
    (pid,) = [pid for pid in ranks if f"rank-{rank}.jsonl" in open_files(pid)]
    os.kill(pid, sign)


def open_files(pid: int) -> set[str]:
    """Names of the files that a process has open."""
    return {
        fd.readlink().name for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()
    }


@pytest.fixture
def at() -> Iterator[Callable[..., None]]:
    """Has something done before some calls, by their numbers, of methods by their names."""
    with ExitStack() as stack:

        def at(name: str, do: Mapping[int, Callable[[], None]]) -> None:
            owner, _, method = name.rpartition(".")
            module, _, kind = owner.rpartition(".")
            holder: Any = getattr(__import__(module, fromlist=[kind]), kind)
            real, calls = getattr(holder, method), count()

            def called(*args: Any, **kwargs: Any) -> Any:
                do.get(next(calls), lambda: None)()
                return real(*args, **kwargs)

            stack.enter_context(mock.patch.object(holder, method, called))

        yield at


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return metrics(train(tmp_path_factory.mktemp("undisturbed")))


def restarts(run_dir: Path) -> list[dict[str, Any]]:
    return list(RunDirectory.open(run_dir).read_record().get("restarts", ()))


@pytest.mark.wide
def test_a_rank_that_is_killed_again_and_again_changes_no_number(
    tmp_path: Path, undisturbed: list[dict[str, Any]], at: Callable[..., None]
) -> None:
    # before the first checkpoint, while one is written, while ranks start again, and in a publish
    at(f"{STAGE}.record", {0: lambda: kill(0)})
    at(f"{CHECKPOINTS}.begin", {8: lambda: kill(0)})
    at(f"{GROUP}.setup", {3: lambda: kill(0)})
    at(f"{STAGE}.publish", {16: lambda: kill(0)})
    run_dir = train(tmp_path, *RAY, "placement.rank_restarts=4")
    assert metrics(run_dir) == undisturbed
    assert states(run_dir)["trained"] == 60
    assert set(states(run_dir)) <= {"trained", "rolled_back"}
    assert [one["rank"] for one in restarts(run_dir)] == [0, 0, 0, 0]
    assert all("the worker of rank 0 died" in one["why"] for one in restarts(run_dir))
    assert len(told(run_dir, "ranks_restarted")) == 4


def test_rollout_workers_and_their_episodes_go_on_without_ranks(
    tmp_path: Path, at: Callable[..., None]
) -> None:
    # step 3 is in training, and no weights were published since the checkpoint of step 2
    at(f"{STAGE}.assemble", {4: lambda: kill(1)})
    run_dir = train(tmp_path, *APART, "stages.rl.steps=5")
    (lost,) = restarts(run_dir)
    assert (lost["rank"], "rank 1 died" in lost["why"]) == (1, True)
    rows = [row for row in metrics(run_dir) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    ledger = list(read_jsonl(run_dir / "ledger.jsonl"))
    taken = {
        row["group_index"] for row in ledger if row["to"] == "taken" and row["step"] == 3
    }
    assert len(taken) == 3
    # what had been taken is trained without being played again, and what was in flight goes on
    second = [row for row in ledger if row["attempt"] == 1]
    issued = {row["group_index"] for row in second if row.get("resumed")}
    assert taken <= issued
    again = {row["group_index"] for row in ledger if row["to"] == "rolled_back"}
    assert again <= issued
    assert sum(row.get("count/restarted_episodes", 0) for row in rows) == 0
    assert not told(run_dir, "worker_lost")
    assert set(states(run_dir)) <= {"trained", "rolled_back", "dropped", "cancelled"}
    trained = [
        (row["group_index"], index)
        for row in second
        if row["to"] == "trained"
        for index in row["rollout_indices"]
    ]
    assert len(trained) == len(set(trained)) > 0


@pytest.mark.wide
def test_groups_with_weights_that_are_rolled_back_are_played_again(
    tmp_path: Path, at: Callable[..., None]
) -> None:
    # version 3 was published after the checkpoint of step 2
    at(f"{STAGE}.assemble", {5: lambda: kill(0)})
    run_dir = train(tmp_path, *APART, "stages.rl.steps=5")
    assert len(restarts(run_dir)) == 1
    rows = [row for row in metrics(run_dir) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["policy_version"] for row in rows] == [1, 2, 3, 4, 5]
    assert max(row["async/staleness/max"] for row in rows) <= 1
    assert not told(run_dir, "worker_lost")
    assert set(states(run_dir)) <= {"trained", "rolled_back", "dropped", "cancelled"}


def test_a_silent_rank_is_named_and_not_the_one_that_waits_for_it(
    tmp_path: Path, at: Callable[..., None]
) -> None:
    at(f"{STAGE}.assemble", {2: lambda: kill(1, signal.SIGSTOP)})
    silent = "placement.worker_liveness_timeout_s=4"
    run_dir = train(tmp_path, *APART, silent, "stages.rl.steps=2")
    (lost,) = restarts(run_dir)
    assert lost["rank"] == 1
    assert "the worker of rank 1 did not answer within 4 s" in lost["why"]
    assert metrics(run_dir)[-1]["step"] == 2


@pytest.mark.wide
def test_one_loss_more_ends_the_run_by_name_and_it_can_be_resumed(
    tmp_path: Path, undisturbed: list[dict[str, Any]], at: Callable[..., None]
) -> None:
    at(f"{STAGE}.record", {13: lambda: kill(0), 14: lambda: kill(0)})
    with pytest.raises(RankLostError) as raised:
        train(tmp_path, *RAY, "placement.rank_restarts=1")
    notes = "\n".join(raised.value.__notes__)
    assert "the worker of rank 0 died" in str(raised.value)
    assert "started again 1 times, and placement.rank_restarts=1 allows 1" in notes
    assert "--resume" in notes or "resume=True" in notes
    run_dir = train(tmp_path, *RAY, "placement.rank_restarts=1", resume=True)
    assert metrics(run_dir) == undisturbed


@pytest.mark.wide
def test_a_checkpoint_that_cannot_be_read_is_told_and_the_one_before_is_taken(
    tmp_path: Path, undisturbed: list[dict[str, Any]], at: Callable[..., None]
) -> None:
    def newest() -> Path:
        return sorted((tmp_path / "run/checkpoints/rl").glob("step=*/manifest.json"))[
            -1
        ].parent

    def cut() -> None:
        next(newest().glob("actor/*")).unlink()

    at(f"{STAGE}.record", {16: lambda: kill(0)})
    at(f"{RESTARTS}.begin", {0: cut})
    run_dir = train(tmp_path, *RAY)
    assert metrics(run_dir) == undisturbed
    (problem,) = told(run_dir, "checkpoint_unreadable")
    assert "step=000004 is corrupt" in problem
    assert "the one before is taken" in problem


@pytest.mark.wide
def test_a_checkpoint_that_ranks_cannot_load_is_told_and_the_one_before_is_taken(
    tmp_path: Path, undisturbed: list[dict[str, Any]], at: Callable[..., None]
) -> None:
    def spoil() -> None:
        for file in (tmp_path / "run/checkpoints/rl/step=000004/actor").rglob("*"):
            if file.is_file():
                file.write_bytes(b"\0" * file.stat().st_size)

    at(f"{STAGE}.record", {16: lambda: kill(0)})
    at(f"{RESTARTS}.begin", {0: spoil})
    run_dir = train(tmp_path, *RAY)
    assert metrics(run_dir) == undisturbed
    first, second = told(run_dir, "ranks_restarted")
    assert "rank 0 died" in first
    assert "step=000004 cannot be loaded" in second


def test_a_resume_of_a_checkpoint_that_cannot_be_loaded_names_it(tmp_path: Path) -> None:
    run_dir = train(tmp_path, "stages.rl.steps=2")
    for file in (run_dir / "checkpoints/rl/step=000002/actor").rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(
        CheckpointError, match=r"step=000002 cannot be loaded: .* delete it"
    ):
        train(tmp_path, "stages.rl.steps=4", resume=True)
