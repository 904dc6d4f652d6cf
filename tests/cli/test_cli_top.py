"""``agentrl top``: what a run does, from its files; runs that ended, are torn, or are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.views.top_text import RunTop
from agentrl.errors import TrainingError
from agentrl.store import EventLog, Heartbeat, RunDirectory
from agentrl.store import heartbeat as heartbeat_module
from agentrl.store.heartbeat import read_told
from tests.kit.waiting import until

Agentrl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(heartbeat_module, "NOW_PERIOD_S", 0.001)
    record = {"command": ["agentrl", "train", "config.yaml", "run.dir=a run"], "seed": 0}
    run = RunDirectory.create(tmp_path / "a run", record)
    rows = [{"step": n, "stage": "rl", "reward/mean": n / 4} for n in (1, 2)]
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def leave_now(run: RunDirectory, **parts: Any) -> None:
    """What a living run has left of what it does."""
    with Heartbeat(run) as heartbeat:
        heartbeat.reach("rl", 2)
        heartbeat.parts |= {name: lambda part=part: part for name, part in parts.items()}
        until(lambda: (read_told(run.now_path) or {}).keys() >= parts.keys())
    end(run, "")


def end(run: RunDirectory, how: str, **beat: Any) -> None:
    left = json.loads(run.heartbeat_path.read_text())
    run.heartbeat_path.write_text(json.dumps({**left, "end": how, **beat}))


def age(path: Path, seconds: float) -> None:
    stat = path.stat()
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def facts(out: str) -> dict[str, str]:
    """What stands before the tables, by name."""
    lines = out.partition("\n\n")[0].splitlines()
    return {line[:10].strip(): line[11:] for line in lines}


def cells(out: str, table: str) -> list[list[str]]:
    """A table's lines, headings included."""
    own = out.partition(f"\n\n{table}\n")[2].partition("\n\n")[0]
    return [line.split() for line in own.splitlines()]


def test_a_living_run_says_who_waits_for_whom(agentrl: Agentrl, run: RunDirectory) -> None:
    call = {"call": "actor.update", "s": 61.5, "waits_for": "rank-1"}
    workers = [{"worker": 0, "state": "serving", "told_s": 0.2, "gib": 1.5}]
    workers += [{"worker": 1, "state": "suspect", "told_s": 71.0, "gib": None}]
    episodes = [
        {"episode": "17-2-0", "turns": 3, "waits_for": "python", "s": 42.0, "worker": 1}
    ]
    leave_now(
        run,
        loop=[{"phase": "wait_rollout", "s": 43.0}],
        processes={
            "calls": [call],
            "memory_gib": {"driver": 0.5},
            "published": {"version": 2},
        },
        rollouts={
            "queues": {"running": 5, "batch": 4},
            "workers": workers,
            "episodes": episodes,
        },
    )
    code, out, _ = agentrl("top", run.root)
    found = facts(out)
    assert code == 0
    assert found["state"].startswith("alive, behind step 2 of rl (process ")
    assert "heard of " in found["state"]
    assert found["step"] == "2 rl: reward 0.5"
    assert found["seen"].endswith(" ago")
    assert cells(out, "loop") == [["phase", "s"], ["wait_rollout", "43.000"]]
    assert cells(out, "calls")[1] == ["actor.update", "61.500", "rank-1"]
    assert cells(out, "memory gib")[1] == ["0.500"]
    assert cells(out, "published")[1] == ["2"]
    assert cells(out, "queues") == [["running", "batch"], ["5", "4"]]
    assert cells(out, "workers")[2] == ["1", "suspect", "71.000", "-"]
    assert cells(out, "episodes")[1] == ["17-2-0", "3", "python", "42.000", "1"]
    code, out, _ = agentrl("top", run.root, "--json")
    told = json.loads(out)
    assert (code, told["state"], told["step"]["step"]) == (0, "alive", 2)
    assert told["now"]["rollouts"]["workers"] == workers


def test_a_run_that_has_ended_says_how(agentrl: Agentrl, run: RunDirectory) -> None:
    leave_now(run, loop=[{"phase": "update", "s": 1.0}])
    end(run, "finished")
    code, out, _ = agentrl("top", run.root)
    found = facts(out)
    assert found["state"].startswith("finished, behind step 2 of rl (")
    assert (code, found["step"], "loop" in out) == (0, "2 rl: reward 0.5", False)
    assert not found.keys() & {"last event", "go on"}
    log = EventLog(run)
    log.failure("run_failed", TrainingError("rank 1 broke"))
    log.log("sink_failed", "a later event", boundary="metrics")
    log.close()
    end(run, "stopped")
    found = facts(agentrl("top", run.root)[1])
    assert found["state"].startswith("stopped, behind step 2 of rl (")
    assert found["last event"] == "rank 1 broke"
    assert found["go on"] == "agentrl train config.yaml 'run.dir=a run' --resume"


def test_a_torn_run_says_when_it_was_last_heard_of_and_how_it_goes_on(
    agentrl: Agentrl, run: RunDirectory
) -> None:
    leave_now(run, loop=[{"phase": "update", "s": 1.0}])
    with run.metrics_path.open("a") as file:
        file.write('{"step": 3, "reward')  # as a kill leaves it
    end(run, "", time=json.loads(run.heartbeat_path.read_text())["time"] - 600)
    age(run.heartbeat_path, 600)
    code, out, err = agentrl("top", run.root)
    found = facts(out)
    assert (code, err) == (0, "")
    assert found["state"].startswith("torn, without an end, behind step 2 of rl (process ")
    assert "heard of 10m 0" in found["state"]
    assert (found["go on"][-9:], found["step"]) == (" --resume", "2 rl: reward 0.5")
    assert cells(out, "loop")[1] == ["update", "1.000"]  # as it was seen last


def test_a_run_that_never_beat_is_torn(agentrl: Agentrl, run: RunDirectory) -> None:
    code, out, _ = agentrl("top", run.root)
    assert code == 0
    assert facts(out)["state"].startswith(
        "torn, without an end, behind step None of None ("
    )
    assert "heard of at no known time" in out


@pytest.mark.parametrize("made", [True, False])
def test_what_is_no_run_is_refused(agentrl: Agentrl, tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "none"
    if made:
        folder.mkdir()
    code, _, err = agentrl("top", folder)
    assert code == 3
    why = "has no run.json" if made else "does not exist"
    assert f"'{folder}' is not a run directory: it {why}; name the run.dir of a run" in err


@pytest.mark.parametrize(
    "now",
    ["", "{", "[1]", '{"time": "x"}', '{"loop": [1, [2]]}', '{"a": {"b": {"c": [{}]}}}'],
)
def test_a_damaged_file_of_now_hides_itself_alone(
    agentrl: Agentrl, run: RunDirectory, now: str
) -> None:
    leave_now(run, loop=[])
    run.now_path.write_text(now)
    code, out, _ = agentrl("top", run.root)
    assert (code, facts(out)["step"]) == (0, "2 rl: reward 0.5")


def test_a_run_is_looked_at_again_until_it_ends(run: RunDirectory) -> None:
    top = RunTop(run)
    with Heartbeat(run):
        assert top.look()["state"] == "alive"
        with run.metrics_path.open("a") as file:
            file.write('{"step": 3}\n')
        assert [top.look()["step"]["step"] for _ in range(2)] == [3, 3]
    assert top.look()["state"] == "finished"
