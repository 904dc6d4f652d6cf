"""``examples/preferences``: a reward model learns what is preferred, and a policy learns from
it.
"""

from __future__ import annotations

import json
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from agentrl.cli.main import run as run_command_line
from agentrl.config.load import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from agentrl.types import load_object
from tests.kit.forks import finish
from tests.run.tiny_run import metrics, start

STAGE = "agentrl.controller.stage.stage_run"
EXAMPLE = Path(__file__).parents[2] / "examples" / "preferences"


def load(name: str) -> Any:
    return load_object(f"task.py:{name}", EXAMPLE)


def asked(messages: Any) -> str:
    return str(messages[0]["content"])


def test_no_question_of_the_held_out_sets_is_trained_on() -> None:
    held_out = {asked(task.messages) for task in load("tasks")(0, split="held_out")}
    held_out |= {
        asked(row["prompt"]) for row in load("pairs")(0, split="held_out", num_pairs=200)
    }
    trained = {asked(task.messages) for task in load("tasks")(0)}
    trained |= {asked(row["prompt"]) for row in load("pairs")(0, num_pairs=500)}
    trained |= {asked(row["messages"]) for row in islice(load("demonstrations")(0), 500)}
    assert len(held_out) > 10
    assert held_out.isdisjoint(trained)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preferences") / "run"
    with Trainer(
        load_config(EXAMPLE / "config.yaml", [f"run.dir={folder}", "placement.mode=inline"])
    ) as trainer:
        trainer.train()
    return folder


@pytest.mark.slow
def test_the_reward_model_orders_pairs_that_it_never_saw(run: Path) -> None:
    pairs = json.loads((run / "summary.json").read_text())["eval"]["pairs"]
    assert pairs["num_tasks"] == 100
    assert pairs["before"]["accuracy"] < 0.65
    assert pairs["after"]["accuracy"] >= 0.8
    assert pairs["after"]["margin"] > 1.0


@pytest.mark.slow
def test_the_policys_reward_rises_and_so_does_what_it_stands_for(run: Path) -> None:
    rows = [
        row
        for row in read_jsonl(run / "metrics.jsonl")
        if row["stage"] == "rl" and "reward/mean" in row
    ]
    first, last = rows[:5], rows[-5:]
    gain = (
        sum(row["reward/mean"] for row in last) / 5
        - sum(row["reward/mean"] for row in first) / 5
    )
    assert gain > 0.5
    for row in rows:  # the function of weight 0 is watched alone
        assert row["reward_part/reward_model/mean"] == pytest.approx(row["reward/mean"])
    accuracies = json.loads((run / "summary.json").read_text())["eval"]["questions"]
    assert accuracies["after"]["sampled"] > accuracies["before"]["sampled"]


@pytest.mark.slow
def test_the_reward_model_is_an_ordinary_folder_and_its_scores_are_stored(
    run: Path,
) -> None:
    model, report = AutoModelForSequenceClassification.from_pretrained(
        run / "models" / "rm", output_loading_info=True
    )
    assert (model.config.num_labels, report["missing_keys"]) == (1, set())
    reader = TrajectoryReader(RunDirectory.open(run))
    (entry, *_) = reader.summaries(label="", purpose="train", step=1)
    assert entry.rewards.keys() == {"correct", "reward_model"}
    stored = reader.get(entry.id).trajectory
    import torch

    with torch.no_grad():
        score = model(input_ids=torch.tensor([stored.sequence(0).tolist()])).logits.item()
    assert stored.rewards["reward_model"] == pytest.approx(score, abs=1e-4)


@pytest.mark.slow
def test_a_stored_runs_episodes_are_pairs(run: Path) -> None:
    from agentrl.errors import ConfigError, DataError
    from agentrl.run.data.stored_pairs import pairs_of_run

    made = list(pairs_of_run(str(run), margin=True))
    assert made
    assert all(
        row["chosen"].reward - row["rejected"].reward == pytest.approx(row["margin"])
        for row in made
    )
    assert all(row["margin"] > 0 for row in made)
    assert {row["chosen"].group_index for row in made} == {
        row["rejected"].group_index for row in made
    }
    first = list(pairs_of_run(str(run), end=0.5))
    rest = list(pairs_of_run(str(run), begin=0.5))
    assert [row["chosen"].id for row in [*first, *rest]] == [
        row["chosen"].id for row in made
    ]
    with pytest.raises(DataError, match="has no group for training"):
        list(pairs_of_run(str(run), min_gap=1e9))
    with pytest.raises(ConfigError, match="begin and end must be shares"):
        list(pairs_of_run(str(run), begin=0.5, end=0.5))


@pytest.mark.slow
def test_the_run_is_examined_with_its_own_reward_model(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_command_line(
            ["eval", str(run), "placement.mode=inline", "--samples", "1", "--json"]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    after = json.loads((run / "summary.json").read_text())["eval"]["questions"]["after"]
    assert report["failed_samples"] == 0
    assert report["sources"]["questions"]["avg@1"]["value"] == pytest.approx(
        after["sampled"], abs=0.25
    )


SHORT = (
    "placement.mode=inline",
    "run.deterministic=true",
    "stages.sft.steps=20",
    "stages.rm.steps=12",
    "stages.rl.steps=5",
    "stages.rm.eval.sets.pairs.args.num_pairs=10",
    "stages.rl.eval.sets={questions: {data: task.py:tasks, args: {split: held_out}, num_tasks: 4}}",
    "checkpoint.every=4",
    "train.batch_prompts=4",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("die_at", "call"),
    [
        pytest.param(f"{STAGE}:StageRun.record", 26, id="while_the_reward_model_learns"),
        pytest.param(
            "agentrl.run.trainer:run_stage", 2, id="before_the_policy_learns_from_it"
        ),
        pytest.param(
            "agentrl.controller.scoring:RewardScorer.score",
            4,
            id="while_episodes_are_scored",
        ),
    ],
)
def test_a_killed_run_goes_on_with_the_same_scores(
    whole: list[dict[str, Any]], tmp_path: Path, die_at: str, call: int
) -> None:
    driver = start(
        EXAMPLE / "config.yaml", tmp_path / "run", die_at=die_at, call=call, overrides=SHORT
    )
    finish(driver, -signal.SIGKILL)
    finish(start(EXAMPLE / "config.yaml", tmp_path / "run", resume=True, overrides=SHORT))
    assert metrics(tmp_path / "run") == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(EXAMPLE / "config.yaml", folder, overrides=SHORT))
    rows = metrics(folder)
    assert {row["stage"] for row in rows} == {"sft", "rm", "rl"}
    assert any("reward_part/reward_model/mean" in row for row in rows)
    return rows
