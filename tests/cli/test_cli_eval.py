"""Scoring a file of evaluated episodes again, and what the file holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.run.eval_file import (
    EvaluatedTask,
    evaluated_tasks,
    read_eval_file,
    task_scores,
    write_eval_file,
)
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import Message, Trajectory

Agentrl = Callable[..., tuple[int, str, str]]

REWARDS = """
def says_42(view):
    return float("42" in view.final_text)

def called(view):
    return float(len(view.turns[0].calls))

def broken(view):
    return 1 / 0
"""


@pytest.fixture
def trajectories(run_dir: Path) -> list[Trajectory]:
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    return [stored.trajectory for stored in reader.get_many(["5-0-0", "5-1-0"])]


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture
def eval_file(trajectories: list[Trajectory], tmp_path: Path) -> Path:
    path = tmp_path / "out" / "eval.parquet"
    write_eval_file(path, evaluated_tasks(trajectories))
    return path


def test_a_file_has_verls_columns_and_the_responses(eval_file: Path) -> None:
    first = pq.read_table(eval_file).to_pylist()[0]
    assert first["data_source"] == "code"
    assert first["prompt"] == [{"role": "user", "content": "what is 6*7"}]
    assert first["reward_model"] == {"style": "rule", "ground_truth": "42"}
    assert first["extra_info"]["index"] == 0
    assert (first["responses"], first["scores"]) == (["answer 42"], [1.0])


def test_a_failed_sample_has_no_score(eval_file: Path) -> None:
    assert pq.read_table(eval_file).to_pylist()[1]["scores"] == [None]


def test_a_file_comes_back_as_it_was_but_for_tokens(
    eval_file: Path, trajectories: list[Trajectory]
) -> None:
    found = read_eval_file(eval_file)
    back, was = found[0].trajectories[0], trajectories[0]
    assert (found[0].task, back.status, back.rewards) == (was.task, was.status, was.rewards)
    assert [turn.calls for turn in back.turns] == [turn.calls for turn in was.turns]
    assert [turn.segments for turn in back.turns] == [(), ()]


def test_statistics_leave_failed_samples_out(trajectories: list[Trajectory]) -> None:
    scores = task_scores(evaluated_tasks(trajectories))
    assert [(entry.scores, entry.answers) for entry in scores] == [
        ((1.0,), ("answer 42",)),
        ((), ()),
    ]


def test_score_again_without_a_model(
    agentrl: Agentrl, eval_file: Path, rewards: Path
) -> None:
    code, out, _ = agentrl(
        "eval", "--score", eval_file, "--reward", f"{rewards}:says_42", "--json"
    )
    assert code == 0
    report = json.loads(out)
    assert report["sources"]["code"]["avg@1"]["value"] == 1.0
    assert report["failed_samples"] == 1


def test_a_reward_sees_the_turns_of_a_stored_episode(
    agentrl: Agentrl, eval_file: Path, rewards: Path
) -> None:
    _, out, _ = agentrl(
        "eval", "--score", eval_file, "--reward", f"{rewards}:called", "--json"
    )
    assert json.loads(out)["sources"]["code"]["avg@1"]["value"] == 1.0


def test_new_scores_can_be_kept(
    agentrl: Agentrl, eval_file: Path, rewards: Path, tmp_path: Path
) -> None:
    rewards.write_text("def never(view):\n    return 0.0\n")
    again = tmp_path / "again.parquet"
    agentrl("eval", "--score", eval_file, "--reward", f"{rewards}:never", "--out", again)
    assert read_eval_file(again)[0].scores == (0.0,)


@pytest.mark.parametrize("path", ["", "pipe", "rewards.py/new.parquet"])
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_scored(
    agentrl: Agentrl, eval_file: Path, rewards: Path, tmp_path: Path, path: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    reward = f"{rewards}:broken"
    code, _, err = agentrl(
        "eval", "--score", eval_file, "--reward", reward, "--out", tmp_path / path
    )
    assert (code, "name a file" in err) == (3, True)


def test_half_of_a_surrogate_pair_is_spelt_as_the_store_does(
    trajectories: list[Trajectory], tmp_path: Path
) -> None:
    whole = trajectories[0]
    message: Message = {"role": "assistant", "content": "answer \ud83d"}
    turn = replace(whole.turns[-1], text="answer \ud83d", message=message)
    odd = replace(whole, turns=(*whole.turns[:-1], turn))
    write_eval_file(tmp_path / "odd.parquet", evaluated_tasks([odd]))
    (row,) = pq.read_table(tmp_path / "odd.parquet").to_pylist()
    assert row["responses"] == [r"answer \ud83d"]
    (entry,) = read_eval_file(tmp_path / "odd.parquet")
    assert entry.trajectories[0].turns[-1].text == "answer \ud83d"


def test_the_table_has_intervals(agentrl: Agentrl, eval_file: Path, rewards: Path) -> None:
    _, out, _ = agentrl("eval", "--score", eval_file, "--reward", f"{rewards}:says_42")
    lines = [line.split() for line in out.splitlines()]
    # Wilson's interval of 1 of 1 at 95%: [1 / (1 + 1.96**2), 1]
    assert ["code", "pass@1", "1.000", "0.207", "to", "1.000", "1"] in lines


def test_a_file_of_verls_can_be_scored(
    agentrl: Agentrl, rewards: Path, tmp_path: Path
) -> None:
    path = tmp_path / "verl.parquet"
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "6*7?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        # as its GSM8K has it: the names are ours too, and what they hold is not
        "extra_info": {
            "split": "test",
            "index": 3,
            "answer": "6*7 is\n#### 42",
            "info": "none",
        },
        "responses": ["it is 42", "it is 41", "42", "42"],
    }
    pq.write_table(pa.Table.from_pylist([row]), path)
    (entry,) = read_eval_file(path)
    assert (entry.task.answer, entry.task.info) == ("42", row["extra_info"])
    _, out, _ = agentrl("eval", "--score", path, "--reward", f"{rewards}:says_42", "--json")
    report = json.loads(out)["sources"]["gsm8k"]
    assert (report["avg@4"]["value"], report["pass@2"]["value"]) == (0.75, 1.0)


@pytest.mark.parametrize(
    ("tokens", "code", "words"),
    [
        (["--score", "FILE"], 2, "--score FILE needs --reward"),
        (
            ["--score", "FILE", "--reward", "REWARDS:says_42", "--samples", "2"],
            2,
            "--samples or",
        ),
        (
            ["--score", "FILE", "--reward", "REWARDS:says_42", "--set", "code"],
            2,
            "--samples or",
        ),
        (
            ["--score", "absent.parquet", "--reward", "REWARDS:says_42"],
            3,
            "there is no file absent.parquet",
        ),
        (
            ["--score", "REWARDS", "--reward", "REWARDS:says_42"],
            3,
            "cannot be read as Parquet",
        ),
        (["--score", "FILE", "--reward", "REWARDS:say_42"], 2, "did you mean 'says_42'?"),
        ([], 2, "name a run or a model"),
        (["some/model"], 2, "is no run directory, so name a configuration"),
    ],
)
def test_a_mistake_is_named(
    agentrl: Agentrl,
    eval_file: Path,
    rewards: Path,
    tokens: list[str],
    code: int,
    words: str,
) -> None:
    filled = [
        token.replace("FILE", str(eval_file)).replace("REWARDS", str(rewards))
        for token in tokens
    ]
    found, _, err = agentrl("eval", *filled)
    assert found == code
    assert words in err.replace(str(eval_file), "FILE")


def test_a_reward_that_raises_names_itself_and_the_task(
    agentrl: Agentrl, eval_file: Path, rewards: Path
) -> None:
    code, _, err = agentrl("eval", "--score", eval_file, "--reward", f"{rewards}:broken")
    assert code == 1
    assert "error: reward 'broken' of task 'calc-1' raised ZeroDivisionError" in err


def test_tasks_of_one_id_in_two_data_sources_stay_apart(
    trajectories: list[Trajectory],
) -> None:
    one = trajectories[0]
    other = replace(one, task=replace(one.task, data_source="search"))
    found: list[EvaluatedTask] = evaluated_tasks([one, other, one])
    assert [(entry.task.data_source, len(entry.trajectories)) for entry in found] == [
        ("code", 2),
        ("search", 1),
    ]
