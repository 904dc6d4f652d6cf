"""A run with a critic: warmed up, trained beside the policy, kept and resumed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.build import StageRecipe
from agentrl.run.stages import role_specs
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.training.models.tiny import build_tiny_model
from tests.run.tiny_run import CONFIG, metrics, train
from tests.run.tiny_task import demonstrations

PPO = [
    "stages.1.algorithm.name=ppo",
    "stages.1.algorithm.critic_warmup_steps=1",
    "stages.1.critic.stage=warmup",
    "stages.1.critic.optim.lr=1e-3",
    "stages.1.eval.every=null",
    "stages.0.steps=2",
    "train.steps=4",
]


def write_config(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_critic_is_trained_beside_the_policy_and_resumed(tmp_path: Path) -> None:
    shown = Console(file=io.StringIO(), width=200)
    for name, steps in (("whole", 4), ("cut", 2)):
        train(tmp_path, *PPO, f"train.steps={steps}", name=name, console=shown)
    lines = shown.file.getvalue().splitlines()
    assert (
        sum("the critic alone was trained (warm-up, 1 of 1)" in line for line in lines) == 2
    )
    assert not any("the very weights that it began with" in line for line in lines)
    rows = [
        row for row in metrics(tmp_path / "whole") if row["stage"] == "rl" and row["step"]
    ]
    # in the first step the critic learns alone
    assert "policy/loss" not in rows[0]
    assert all("policy/loss" in row for row in rows[1:])
    assert [row["count/trained_tokens"] > 0 for row in rows] == [False, True, True, True]
    # what did not change is not published
    assert [row["policy_version"] for row in rows] == [0, 1, 2, 3]
    assert all(row["critic/optim/grad_norm"] > 0 for row in rows)
    assert all(row["critic/explained_variance"] <= 1 for row in rows)
    assert (tmp_path / "whole" / "models" / "rl" / "critic" / "config.json").is_file()

    train(tmp_path, *PPO, name="cut", resume=True)
    resumed = [
        row for row in metrics(tmp_path / "cut") if row["stage"] == "rl" and row["step"]
    ]
    names = ("policy/loss", "critic/loss", "critic/value", "critic/optim/grad_norm")
    assert [[row.get(name) for name in names] for row in resumed] == [
        [row.get(name) for name in names] for row in rows
    ]


def test_the_rates_of_policy_and_critic_end_with_their_own_steps(tmp_path: Path) -> None:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "ff": 16}
    model = tmp_path / "model"
    build_tiny_model(
        model, demonstrations(0), num_demonstrations=40, vocab_size=300, **sizes
    )
    overrides = [*PPO, "stages.1.train.mini_batch_prompts=1", "train.updates_per_batch=2"]
    stage = load_config(write_config(tmp_path), overrides).resolved_stages()[1]
    recipe = StageRecipe(stage, stage.make_algorithm(), model, None, 4, {"critic": model})
    specs = role_specs(recipe)
    # 2 passes over 3 mini-batches, in 3 steps of the policy and 4 of the critic
    assert {name: spec.total_steps for name, spec in specs.items()} == {
        "actor": 18,
        "critic": 24,
    }
    # a critic of another folder may have a smaller vocabulary
    assert {name: spec.reads_policy for name, spec in specs.items()} == {
        "actor": False,
        "critic": True,
    }


def test_steps_that_are_asked_for_in_python_go_beyond_the_warm_up(tmp_path: Path) -> None:
    with (
        Trainer(
            load_config(write_config(tmp_path), [*PPO, f"run.dir={tmp_path / 'run'}"])
        ) as own,
        pytest.raises(
            ConfigError, match=r"must be less than train\.steps=1 .*, got 1; lower it"
        ),
    ):
        own.train(1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stages.1.algorithm.name=ppo"], "needs a critic, got neither critic.stage nor"),
        (
            ["stages.1.critic.stage=warmup"],
            "critic.stage does nothing with algorithm.name='grpo'",
        ),
        (
            ["stages.1.reference.stage=warmup"],
            "reference.stage does nothing with algorithm.name='grpo' as it is set",
        ),
        (
            ["stages.1.algorithm.kl_coef=0.1", "stages.1.reference.stage=rl"],
            "reference.stage must name what the reference starts from (model, warmup), got 'rl'",
        ),
        (
            ["stages.1.algorithm.name=ppo", "stages.1.critic.stage=warm"],
            "critic.stage must name what the critic starts from (model, warmup), got 'warm'",
        ),
        (
            ["stages.1.algorithm.name=ppo", "stages.1.critic={stage: warmup, path: x}"],
            "critic.stage and critic.path exclude each other",
        ),
    ],
)
def test_a_critic_that_does_not_fit_is_named(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(tmp_path), overrides)
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_policy_is_distilled_from_another_model(tmp_path: Path) -> None:
    overrides = [
        "stages.1.algorithm.name=distillation",
        "stages.1.reference.stage=warmup",
        "stages.1.from=model",
        "stages.1.eval.every=null",
        "stages.0.steps=6",
        "train.steps=2",
        "store.detail=full",
    ]
    train(tmp_path, *overrides)
    rows = [
        row for row in metrics(tmp_path / "run") if row["stage"] == "rl" and row["step"]
    ]
    assert all(row["optim/grad_norm"] > 0 for row in rows)
    # the untrained policy is far from its teacher, and minus that is the advantage
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "run"))
    advantages = [
        one.arrays["advantages"]
        for one in reader.annotations()
        if "ref_logprobs" in one.arrays
    ]
    assert advantages
    assert np.nanmean(np.concatenate(advantages)) < -0.1


def test_epochs_that_end_within_the_warm_up_are_refused(tmp_path: Path) -> None:
    overrides = [
        "stages.1.algorithm.name=ppo",
        "stages.1.algorithm.critic_warmup_steps=500",
        "stages.1.critic.stage=model",
        "stages.1.from=model",
        "stages.1.train.epochs=1",
        "stages.0.steps=1",
    ]
    with pytest.raises(ConfigError, match=r"must be less than train.steps=\d+ .*, got 500"):
        train(tmp_path, *overrides)
    assert not (tmp_path / "run").exists()  # before the stage in front of it is trained
