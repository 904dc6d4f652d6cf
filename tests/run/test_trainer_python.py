"""Training from Python, in this process, with live objects."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl import EpisodeView, Summary, Task, Trainer, load_config, tool
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    DataError,
    EngineError,
    MachineError,
    StoreError,
    TrainingError,
)
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from tests.run.tiny_run import CONFIG, TASK, TRAINED, metrics, states, train
from tests.run.tiny_task import build_model

QUICK = [
    "run.deterministic=false",
    "stages.warmup.steps=2",
    "stages.rl.steps=2",
    "stages.rl.eval.every=null",
]

Open = Callable[..., Trainer]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    trainers: list[Trainer] = []

    def open_trainer(*overrides: str, text: str = CONFIG, **live: Any) -> Trainer:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        config = load_config(
            tmp_path / "config.yaml", [f"run.dir={tmp_path / 'run'}", *QUICK, *overrides]
        )
        trainers.append(Trainer(config, **live))
        return trainers[-1]

    yield open_trainer
    for trainer in trainers:
        trainer.close()


@tool
def double(a: int) -> str:
    """Twice a number.

    Args:
        a: the number.
    """
    return str(2 * a)


def letters(episode: EpisodeView) -> float:
    return float(sum(letter.isalpha() for letter in episode.turns[-1].text))


def test_live_tools_and_a_live_reward_take_the_place_of_the_files(
    opened: Open, tmp_path: Path
) -> None:
    trainer = opened(tools=[double], reward=letters)
    summary = trainer.train()
    assert isinstance(summary, Summary)
    assert (summary.run_dir, summary.steps) == (tmp_path / "run", 2)
    rows = metrics(tmp_path / "run")
    assert [(row["stage"], row["step"]) for row in rows] == [
        ("warmup", 1),
        ("warmup", 2),
        ("rl", 0),
        ("rl", 1),
        ("rl", 2),
    ]
    assert "reward_part/letters/mean" in rows[-1]
    assert states(tmp_path / "run")["trained"] == sum(
        int(row["count/trained_trajectories"])
        for row in rows
        if row["stage"] == "rl" and row["step"]
    )

    results = trainer.evaluate()
    assert results.keys() == {"sums"}
    assert results["sums"]["num_tasks"] == 3
    with pytest.raises(ConfigError, match=r"eval\.sets has no 'other'; it has sums"):
        trainer.evaluate("other")

    task: Task = Task("mine", ({"role": "user", "content": "1 and 2?"},))
    played = trainer.rollout([task], samples=3)
    assert [(t.task.id, t.rollout_index, t.purpose) for t in played] == [
        ("mine", n, "eval") for n in range(3)
    ]
    assert all(t.reward == letters_of(t) for t in played if t.status.finished)
    assert trainer.rollout([]) == []


def letters_of(trajectory: Any) -> float:
    return float(sum(letter.isalpha() for letter in trajectory.turns[-1].text))


@pytest.mark.slow
def test_the_run_directory_tells_what_ran(trained: RunDirectory) -> None:
    run = trained.root
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval"]["sums"].keys() == {"before", "after", "num_tasks"}
    assert summary["eval"]["sums"]["after"].keys() >= {"sampled", "greedy"}
    assert summary["steps"] == 2
    assert {
        "wait_rollout",
        "update",
        "publish",
        "checkpoint",
        "eval",
        "setup",
        "total",
    } <= summary["seconds"].keys()
    record = json.loads((run / "run.json").read_text())
    assert (record["seed"], record["data"].keys()) == (0, {"rl/train", "rl/eval/sums"})
    assert {"torch", "transformers"} <= record["versions"].keys()
    assert (run / "config.resolved.yaml").is_file()
    assert (run / "models" / "rl" / "config.json").is_file()
    assert sorted(p.name for p in (run / "checkpoints" / "rl").iterdir()) == ["step=000002"]
    stored = TrajectoryReader(RunDirectory(run)).summaries()
    assert sum(not summary.label for summary in stored) == sum(states(run).values())
    assert {summary.stage for summary in stored} == {"rl"}
    assert all(summary.id.startswith("rl/sums/") for summary in stored if summary.label)
    assert all(summary.env and summary.group_size and summary.agents for summary in stored)
    assert all(summary.started_at <= summary.ended_at for summary in stored)


def test_a_run_directory_that_exists_is_refused(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"format": 1}')
    with pytest.raises(
        ConfigError, match=r"already holds a run; go on with it by --resume"
    ):
        opened().train()


def test_a_folder_of_other_files_is_refused(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"already holds files, such as thesis\.tex"):
        opened().train()


def test_what_is_no_run_is_not_resumed(opened: Open) -> None:
    with pytest.raises(StoreError, match="is not a run directory: it does not exist"):
        opened().train(resume=True)


def test_an_engine_that_is_not_there_is_refused_before_anything_is_made(
    opened: Open, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere" / "python"
    with pytest.raises(
        MachineError,
        match=r"rollout\.sglang\.python='.*nowhere/python' is no file; run `agentrl",
    ):
        opened(
            "rollout.engine=sglang",
            "run.deterministic=false",
            f"rollout.sglang.python={nowhere}",
        ).train()
    assert not (tmp_path / "run").exists()


def test_an_empty_data_set_is_refused_before_anything_is_made(
    opened: Open, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    trainer = opened(text=CONFIG.replace(f'train: "{TASK}:tasks"', "train: empty.jsonl"))
    with pytest.raises(DataError, match=r"data\.train='empty\.jsonl' holds no row"):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_a_model_folder_that_is_not_there_is_named(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.path='nowhere' is no folder"):
        opened("model.path=nowhere").train()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise OSError('no disk')", "raised OSError: no disk"),
        ("pass", r"wrote no config\.json"),
    ],
)
def test_a_model_that_cannot_be_built_is_named(
    opened: Open, tmp_path: Path, body: str, message: str
) -> None:
    (tmp_path / "build.py").write_text(f"def build(folder):\n    {body}\n")
    with pytest.raises(DataError, match=message):
        opened("model.build=build.py:build").train()


@pytest.mark.slow
def test_after_an_exception_in_mid_run_the_same_trainer_goes_on(
    opened: Open, tmp_path: Path
) -> None:
    fails = [True]

    def moody(episode: EpisodeView) -> float:
        return letters(episode)

    trainer = opened("checkpoint.every=1", reward=moody)
    from agentrl.training import Actor

    real = Actor.update
    calls = iter(range(100))

    def update(self: Actor, shard: Any) -> Any:
        if fails and next(calls) == 3:  # two of the warm-up, one of the first step
            raise ZeroDivisionError("a bug")
        return real(self, shard)

    update.__registration__ = real.__registration__  # type: ignore[attr-defined]
    Actor.update = update  # type: ignore[method-assign]
    try:
        with pytest.raises(
            TrainingError, match=r"rank 0: actor\.update raised ZeroDivisionError: a bug"
        ):
            trainer.train()
        fails.clear()
        summary = trainer.train(resume=True)
    finally:
        Actor.update = real  # type: ignore[method-assign]
    assert summary.steps == 2
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows if row["stage"] == "rl"] == [0, 1, 2]
    events = read_jsonl(tmp_path / "run" / "events.jsonl")
    assert {"run_failed", "resumed"} <= {event["event"] for event in events}
    assert set(states(tmp_path / "run")) <= {
        "trained",
        "rolled_back",
        "dropped",
        "failed",
        "cancelled",
    }


def test_a_step_whose_every_episode_fails_ends_the_run_and_never_rewards_0(
    opened: Open, tmp_path: Path
) -> None:
    def broken(episode: EpisodeView) -> float:
        raise OSError("the judge is down")

    trainer = opened("stages.rl.eval.before=false", "rollout.max_retries=0", reward=broken)
    with pytest.raises(
        EngineError,
        match=r"every one of the \d+ episodes of step 1 of stage 'rl' ended as failed\(rew",
    ):
        trainer.train()
    assert set(states(tmp_path / "run")) == {"failed"}


def test_a_corrupt_checkpoint_is_refused_by_name_on_resume(
    trained: RunDirectory, tmp_path: Path
) -> None:
    shutil.copytree(trained.root, tmp_path / "run")
    (checkpoint,) = (tmp_path / "run" / "checkpoints" / "rl").iterdir()
    (checkpoint / "manifest.json").write_text("{")
    with pytest.raises(
        DataError, match=r"step=000002 is corrupt: manifest\.json cannot be read"
    ):
        train(tmp_path, *TRAINED, resume=True)


def test_a_model_of_ones_own_is_played_without_training(
    opened: Open, tmp_path: Path
) -> None:
    build_model(tmp_path / "model", 0)
    trainer = opened(f"model.path={tmp_path / 'model'}", reward=letters)
    (played,) = trainer.rollout([Task("t", ({"role": "user", "content": "1 and 2?"},))])
    assert played.num_policy_tokens > 0
    assert trainer.evaluate("sums")["sums"]["num_tasks"] == 3


def test_without_a_model_nothing_is_played(opened: Open) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.path is not set and nothing was trained yet"
    ):
        opened().rollout([Task("t", ({"role": "user", "content": "hi"},))])


def test_a_closed_trainer_opens_again(opened: Open, tmp_path: Path) -> None:
    build_model(tmp_path / "model", 0)
    trainer = opened(f"model.path={tmp_path / 'model'}", reward=letters)
    task: Task = Task("t", ({"role": "user", "content": "1 and 2?"},))
    first = trainer.rollout([task])
    trainer.close()
    again = trainer.rollout([task])
    assert [t.turns[0].text for t in again] == [t.turns[0].text for t in first]


def test_several_ranks_in_one_process_are_refused(opened: Open) -> None:
    with pytest.raises(AgentRLError, match="inline"):
        opened("placement.world_size=2").train()


def test_a_run_says_which_template_family_it_found_and_who_reads_the_calls(
    trained: RunDirectory,
) -> None:
    events = read_jsonl(trained.root / "events.jsonl")
    told = [event for event in events if event["event"] == "renderer"]
    assert [(event["family"], event["parser"]) for event in told] == [
        ("chatml", "HermesParser")
    ] * 2
    assert (
        "stage warmup: chat template family chatml (model.renderer: auto)"
        in told[0]["message"]
    )
