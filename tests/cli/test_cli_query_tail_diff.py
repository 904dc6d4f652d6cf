"""``agentrl ls`` by query, ``query``, ``tail`` and ``diff``: for people and as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from agentrl.cli.views.tail_lines import RunTail
from agentrl.store import (
    Annotation,
    EventLog,
    Heartbeat,
    JsonlWriter,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    keep_lines,
)
from agentrl.types import Task
from tests.kit.waiting import DEADLINE_S

from .conftest import two_turns

Agentrl = Callable[..., tuple[int, str, str]]


def test_ls_takes_a_query_and_an_order(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("ls", run_dir, "tool:none status:failed", "--json")
    assert [row["id"] for row in json.loads(out)] == ["5-1-0"]
    _, out, _ = agentrl("ls", run_dir, "--sort", "-reward", "--json")
    assert [row["id"] for row in json.loads(out)] == ["5-0-0", "5-1-0"]
    _, out, _ = agentrl("ls", run_dir, "answer", "--limit", "1")
    assert out.splitlines()[-1] == "1 trajectory: 1 terminated"


def test_ls_refuses_what_is_no_query(agentrl: Agentrl, run_dir: Path) -> None:
    code, _, err = agentrl("ls", run_dir, "statsu:failed")
    assert code == 2
    assert "position 1:" in err
    assert "did you mean 'status'?" in err


def test_ls_shows_the_fields_that_are_asked_for(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("ls", run_dir, "--columns", "id,finish,calls,final", "--sort", "id")
    assert out.splitlines()[0].split() == ["id", "finish", "calls", "final"]
    for tokens in (("--columns", "num_calls"), ("--sort", "num_calls")):
        code, _, err = agentrl("ls", run_dir, *tokens)
        assert code == 2
        assert "did you mean 'calls'?" in " ".join(err.split())
    code, _, err = agentrl("query", run_dir, "SELECT num_calls FROM trajectories")
    assert code == 2
    assert "calls" in err


def test_query_answers_sql(agentrl: Agentrl, run_dir: Path) -> None:
    sql = "SELECT id, turns FROM trajectories ORDER BY id"
    _, out, _ = agentrl("query", run_dir, sql, "--json")
    rows = [{"id": "5-0-0", "turns": 2}, {"id": "5-1-0", "turns": 0}]
    assert json.loads(out) == rows
    _, out, _ = agentrl("query", run_dir, sql, "--limit", "1")
    assert "there are more" in out
    code, _, err = agentrl("query", run_dir, "DELETE FROM trajectories")
    assert code == 2
    assert "one SELECT" in err


@pytest.mark.parametrize("large", [1e17, 1.7e308])
def test_a_query_has_the_numbers_of_a_run_however_large(
    agentrl: Agentrl, run_dir: Path, large: float
) -> None:
    with TrajectoryWriter(RunDirectory(run_dir), "other") as writer:
        rewards = {"distance": large, "correct": 1.0}
        writer.write(replace(two_turns(), group_index=9, rewards=rewards), step=2)
        values = {"at": large, "staleness": large, "credit": -large}
        writer.annotate(Annotation("9-0-0", 2, "judge", values=values))
    names = '"reward.distance", "annotation.at", credit, staleness'
    sql = f"SELECT {names} FROM trajectories WHERE id = '9-0-0'"
    code, out, err = agentrl("query", run_dir, sql, "--json")
    assert code == 0, err
    # no whole number of versions
    assert list(json.loads(out)[0].values()) == [large, large, -large, None]
    code, out, _ = agentrl(
        "query", run_dir, "SELECT count(*) AS number FROM metrics", "--json"
    )
    assert (code, json.loads(out)) == (0, [{"number": 2}])


def test_a_query_tells_times_and_nested_numbers(agentrl: Agentrl, run_dir: Path) -> None:
    sql = (
        "SELECT list(reward::DECIMAL(9,2) ORDER BY id) AS rewards, min(to_timestamp(0)) AS first, "
        "list(to_timestamp(0)::DATE) AS days, max(now()) AS now FROM trajectories"
    )
    code, out, err = agentrl("query", run_dir, sql, "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert datetime.fromisoformat(row.pop("now")).tzinfo is not None
    assert datetime.fromisoformat(row.pop("first")).timestamp() == 0
    assert row == {"rewards": [1.0, None], "days": ["1970-01-01"] * 2}
    assert "[1.0, None]" in agentrl("query", run_dir, sql)[1]


@pytest.mark.usefixtures("tokenizer")
def test_json_of_a_query_that_was_cut_says_so_beside_it(
    agentrl: Agentrl, run_dir: Path
) -> None:
    _, out, err = agentrl("query", run_dir, "SELECT 1 FROM turns", "--json", "--limit", "1")
    assert len(json.loads(out)) == 1
    assert "there are more (--limit, 10000 at most)" in err


@pytest.mark.parametrize(
    ("command", "bound"),
    [
        (["ls", "RUN", "--limit", "-1"], "--limit. Must be >= 0"),
        (["query", "RUN", "SELECT 1", "--limit", "0"], "--limit. Must be >= 1"),
        (["query", "RUN", "SELECT 1", "--timeout", "0"], "--timeout. Must be > 0"),
        (["tail", "RUN", "--interval", "0"], "--interval. Must be > 0"),
        (["tail", "RUN", "--lines", "-1"], "--lines. Must be >= 0"),
        (["replay", "RUN", "--limit", "-1"], "--limit. Must be >= 0"),
        (["view", "RUN", "--port", "65536"], "--port. Must be <= 65535"),
    ],
)
def test_a_number_out_of_its_bounds_is_named(
    agentrl: Agentrl, command: list[str], bound: str
) -> None:
    code, _, err = agentrl(*command)
    assert code == 2
    assert bound in err


def test_diff_says_where_two_trajectories_part(agentrl: Agentrl, run_dir: Path) -> None:
    code, out, _ = agentrl("diff", run_dir, "5-0-0", "5-1-0")
    assert code == 0
    assert "the first token that differs is 0" in out
    assert "b | has ended" in out
    assert "reward: a 1, b none" in out
    _, out, _ = agentrl("diff", run_dir, "5-0-0", "5-0-0", "--json")
    assert json.loads(out)["first_divergence"] is None


def test_tail_of_a_run_that_ended_shows_the_latest_and_ends(
    agentrl: Agentrl, run_dir: Path
) -> None:
    with closing(EventLog(RunDirectory(run_dir))) as events:
        events.log("x", "the disk is nearly full", boundary="store", level="warning")
    code, out, _ = agentrl("tail", run_dir, "--lines", "1")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0].startswith("trajectory 5-1-0: failed(engine)")
    assert lines[1] == "warning the disk is nearly full"
    assert lines[2] == "step 1: reward 0.5"
    assert lines[3].endswith("has finished")


def test_tail_follows_a_living_run_until_ctrl_c(run_dir: Path) -> None:
    run = RunDirectory(run_dir)
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "tail",
        str(run_dir),
        "--json",
        "--interval",
        "0.1",
    ]
    with Heartbeat(run), TrajectoryWriter(run, "late") as writer:
        tail = subprocess.Popen(
            [*command, "reward>0.9"], stdout=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert tail.stdout is not None
        seen = [json.loads(tail.stdout.readline()) for _ in range(3)]
        assert sorted(entry["kind"] for entry in seen) == ["step", "step", "trajectory"]
        late = replace(two_turns(), task=Task("late", (), None, "code"), group_index=9)
        writer.write(late, step=2)
        writer.flush()
        entry = json.loads(tail.stdout.readline())
        assert (entry["kind"], entry["task"]) == ("trajectory", "late")
        tail.send_signal(signal.SIGINT)
        assert tail.wait(DEADLINE_S) == 0
        tail.stdout.close()
    assert len(TrajectoryReader(run).summaries()) == 3


def test_tail_tells_what_a_resume_made_again_and_nothing_twice(run_dir: Path) -> None:
    run = RunDirectory(run_dir)

    def log(*rows: dict[str, object]) -> None:
        with closing(JsonlWriter(run.metrics_path)) as lines:
            for row in rows:
                lines.append(row)

    log({"step": 2}, {"step": 3, "stage": "rl"})
    with Heartbeat(run), RunTail(run, "", 9) as tail:
        told = (dict(entry.values) for entry in tail.follow(0.0) if entry.kind == "step")
        assert [next(told)["step"] for _ in range(4)] == [0, 1, 2, 3]
        keep_lines(run.metrics_path, lambda row: row["step"] <= 2)
        log({"step": 3, "stage": "again"})
        assert next(told) == {"step": 3, "stage": "again"}
        # another run in its place
        run.metrics_path.unlink()
        log({"step": 0}, {"step": 1}, {"step": 2}, {"step": 3}, {"step": 4})
        assert [next(told) for _ in range(5)] == [{"step": step} for step in range(5)]


def test_tail_names_events_that_are_none(agentrl: Agentrl, run_dir: Path) -> None:
    event = {"level": "warning", "message": "m", "query": 5}
    (run_dir / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert "passed over: the query of an event cannot be 5" in agentrl("tail", run_dir)[1]


def test_show_says_whether_a_run_lives(agentrl: Agentrl, run_dir: Path) -> None:
    assert "state  finished" in agentrl("show", run_dir)[1]
    run = RunDirectory(run_dir)
    with Heartbeat(run) as heartbeat:
        heartbeat.reach("rl", 4)
    run.heartbeat_path.write_text(
        run.heartbeat_path.read_text().replace('"finished"', '""')
    )
    assert "alive, behind step 4 of stage rl" in agentrl("show", run_dir)[1]


@pytest.mark.usefixtures("tokenizer")
def test_show_decodes_by_the_runs_own_tokenizer_when_the_model_is_gone(
    agentrl: Agentrl, run_dir: Path
) -> None:
    run = RunDirectory(run_dir)
    assert list(run.read_record()["tokenizers"]["rl"]) == ["tokenizer.json"]
    (run.models_folder / "rl" / "tokenizer.json").unlink()
    _, out, _ = agentrl("show", run_dir, "5-0-0")
    assert "policy | call python <end>" in [line.strip() for line in out.splitlines()]
