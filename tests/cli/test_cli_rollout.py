"""``agentrl rollout`` keeps the episodes of a policy in a run directory, and completes what was
begun.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from agentrl.run.collection import collect
from agentrl.run.policy_source import named_policy
from agentrl.store import (
    RunDirectory,
    TrajectoryReader,
    TrajectorySummary,
    TrajectoryWriter,
)
from agentrl.types import concat_ids, load_object
from tests.kit import forks
from tests.kit.held_name import held_elsewhere

TASK = Path(__file__).resolve().parents[1] / "run" / "tiny_task.py"

CONFIG = f"""\
placement: {{mode: inline}}
model: {{path: model}}
env: {{tools: ["{TASK}:add"], describe_tools_in_prompt: false}}
data: {{train: "{TASK}:tasks", max_prompt_tokens: 64}}
reward: {{functions: ["{TASK}:graded"]}}
rollout: {{group_size: 2, max_turns: 2, max_turn_tokens: 6, max_response_tokens: 40, max_running: 4}}
"""  # noqa: E501

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collected")
    (folder / "model").mkdir()
    load_object(f"{TASK.name}:build_model", TASK.parent)(folder / "model", seed=0)
    path = folder / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def stored(out: Path) -> list[TrajectorySummary]:
    return TrajectoryReader(RunDirectory.open(out)).summaries()


def test_episodes_are_kept_as_a_data_set(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, printed, _ = agentrl("rollout", config, "--tasks", "3", "--out", out)
    assert code == 0
    assert "6 episodes" in printed
    assert [(s.group_index, s.rollout_index) for s in stored(out)] == [
        (n, sibling) for n in range(3) for sibling in range(2)
    ]
    rows = pyarrow.dataset.dataset(out / "traj" / "sealed", format="parquet").to_table()
    assert rows.num_rows == 6
    assert {"token_ids", "reward", "task"} <= set(rows.column_names)


def test_more_tasks_are_added_to_those_that_are_there(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", config, "--tasks", "2", "--out", out)[0] == 0
    before = stored(out)
    assert agentrl("rollout", config, "--tasks", "3", "--out", out)[0] == 0
    after = stored(out)
    assert after[: len(before)] == before  # played once
    assert len(after) == 6


def test_what_was_interrupted_goes_on(config: Path, tmp_path: Path) -> None:
    alone = named_policy(config, None, (), command="agentrl rollout")

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(alone, tmp_path / "out", num_tasks=4, played=interrupt)
    kept = {s.id: s.recorded_at for s in stored(tmp_path / "out")}
    assert len(kept) == 4
    told: list[tuple[int, int]] = []
    collected = collect(
        alone,
        tmp_path / "out",
        num_tasks=4,
        played=lambda done, total: told.append((done, total)),
    )
    assert told == [(3, 4), (4, 4)]
    assert {s.id: s.recorded_at for s in collected if s.id in kept} == kept
    assert len(collected) == 8


def test_a_second_call_leaves_one_that_lives_as_it_is(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", config, "--tasks", "1", "--out", out)[0] == 0
    beat = (out / "heartbeat.json").read_bytes()
    with held_elsewhere(out / "run.lock"):
        code, _, error = agentrl("rollout", config, "--tasks", "1", "--out", out)
    assert (code, "run.lock is held by another process" in error) == (2, True), error
    assert (out / "heartbeat.json").read_bytes() == beat


def test_other_settings_go_to_another_folder(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", config, "--tasks", "1", "--out", out)[0] == 0
    code, _, error = agentrl(
        "rollout", config, "rollout.temperature=0.5", "--tasks", "1", "--out", out
    )
    assert (code, "holds episodes of other settings" in error) == (2, True)
    code, _, error = agentrl(
        "rollout", config, "--samples", "3", "--tasks", "1", "--out", out
    )
    assert (code, "holds episodes of other --samples" in error) == (2, True)


def test_a_configuration_without_a_model_is_refused(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    text = config.read_text(encoding="utf-8").replace("model: {path: model}\n", "")
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    code, _, error = agentrl("rollout", tmp_path / "config.yaml", "--out", tmp_path / "out")
    assert code == 2
    assert "name the policy: agentrl rollout RUN|MODEL" in error


def test_the_record_says_what_was_asked_for(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert (
        agentrl("rollout", config, "--tasks", "1", "--samples", "3", "--out", out)[0] == 0
    )
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["collection"] == {"samples": 3}
    assert len(stored(out)) == 3


def rows_of(out: Path, cache: Path) -> list[dict[str, Any]]:
    """The data set as Hugging Face's ``datasets`` loads it, by the pattern that docs/rollouts.md
    names.
    """
    from datasets import load_dataset

    pattern = str(out / "traj" / "sealed" / "*" / "*.parquet")
    return list(
        load_dataset("parquet", data_files=pattern, split="train", cache_dir=str(cache))
    )


@pytest.mark.slow
def test_datasets_loads_the_shards_of_several_calls(config: Path, tmp_path: Path) -> None:
    alone = named_policy(config, None, (), command="agentrl rollout")
    for num_tasks in (1, 3):
        collect(alone, tmp_path / "out", num_tasks=num_tasks)
    assert len(list((tmp_path / "out" / "traj" / "sealed").rglob("*.parquet"))) == 2
    rows = {row["id"]: row for row in rows_of(tmp_path / "out", tmp_path / "cache")}
    assert sorted(rows) == [
        f"{draw}-{sibling}-0" for draw in range(3) for sibling in range(2)
    ]
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "out"))
    for name, row in rows.items():
        trajectory = reader.get(name).trajectory
        policy = [
            token
            for token, kind in zip(row["token_ids"], row["kinds"], strict=True)
            if kind == 1
        ]
        assert policy == [
            t for turn in trajectory.turns for t in concat_ids(turn.completion).tolist()
        ]
        assert row["reward"] == trajectory.reward


@pytest.mark.slow
def test_an_episode_that_had_finished_is_in_the_data_set_once(
    config: Path, tmp_path: Path
) -> None:
    alone = named_policy(config, None, (), command="agentrl rollout")
    collect(alone, tmp_path / "whole", num_tasks=1)
    collect(alone, tmp_path / "out", num_tasks=0)
    first = TrajectoryReader(RunDirectory.open(tmp_path / "whole")).get("0-0-0").trajectory
    with TrajectoryWriter(
        RunDirectory.open(tmp_path / "out")
    ) as writer:  # then the process was killed
        writer.write(first, 0)
    collect(alone, tmp_path / "out", num_tasks=1)
    assert [row["id"] for row in rows_of(tmp_path / "out", tmp_path / "cache")] == [
        "0-0-0",
        "0-1-0",
    ]


@pytest.mark.slow
def test_a_call_that_was_killed_is_completed_by_the_next(
    config: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    asked = ["rollout", config, "--samples", "4", "--out", out]
    # on the writer's thread: of what is queued a kill may lose all
    at = "agentrl.store:TrajectoryWriter._store"
    killed = forks.agentrl(asked, log, (signal.SIGKILL, at, 20))
    forks.finish(killed, -signal.SIGKILL)
    before = {s.id: s.recorded_at for s in stored(out)}
    assert len(before) == 20
    forks.finish(forks.agentrl(asked, log))
    after = {s.id: s.recorded_at for s in stored(out)}
    assert {name: after[name] for name in before} == before
    ids = sorted(row["id"] for row in rows_of(out, tmp_path / "cache"))
    assert ids == sorted(
        f"{draw}-{sibling}-0" for draw in range(12) for sibling in range(4)
    )


def test_tasks_whose_prompts_are_too_long_are_left_out(
    agentrl: Run, config: Path, tmp_path: Path
) -> None:
    rows = [
        {"id": "long", "question": "3 and 4? " * 12, "answer": "7"},
        {"id": "short", "question": "3 and 4?"},
    ]
    (config.parent / "mixed.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    setting = ("data.train=mixed.jsonl", "data.max_prompt_tokens=40")
    code, printed, _ = agentrl("rollout", config, *setting, "--out", tmp_path / "out")
    assert code == 0
    assert "left out 1 of 2 tasks of data.train" in printed
    assert [(s.group_index, s.task_id) for s in stored(tmp_path / "out")] == [
        (1, "short")
    ] * 2
