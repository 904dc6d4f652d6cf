"""A run with a critic: warmed up, trained beside the policy, kept and resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, TrajectoryReader
from tests.run.tiny_run import CONFIG, metrics

PPO = [
    "stages.1.algorithm.name=ppo",
    "stages.1.algorithm.critic_warmup_steps=1",
    "stages.1.critic.stage=warmup",
    "stages.1.critic.optim.lr=1e-3",
    "stages.1.eval.every=null",
    "stages.0.steps=6",
    "train.steps=4",
]


def write_config(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_a_critic_is_trained_beside_the_policy_and_resumed(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    for name, steps in (("whole", 4), ("cut", 2)):
        overrides = [*PPO, f"run.dir={tmp_path / name}", f"train.steps={steps}"]
        with Trainer(load_config(config, overrides)) as trainer:
            trainer.train()
    rows = [row for row in metrics(tmp_path / "whole") if row["stage"] == "rl" and row["step"]]
    # in the first step the critic learns alone
    assert "policy/loss" not in rows[0]
    assert all("policy/loss" in row for row in rows[1:])
    assert all(row["critic/optim/grad_norm"] > 0 for row in rows)
    assert all(row["critic/explained_variance"] <= 1 for row in rows)
    assert (tmp_path / "whole" / "models" / "rl" / "critic" / "config.json").is_file()

    overrides = [*PPO, f"run.dir={tmp_path / 'cut'}", "train.steps=4"]
    with Trainer(load_config(config, overrides)) as trainer:
        trainer.train(resume=True)
    resumed = [row for row in metrics(tmp_path / "cut") if row["stage"] == "rl" and row["step"]]
    names = ("policy/loss", "critic/loss", "critic/value", "critic/optim/grad_norm")
    assert [[row.get(name) for name in names] for row in resumed] == [
        [row.get(name) for name in names] for row in rows
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stages.1.algorithm.name=ppo"], "needs a critic, got neither critic.stage nor"),
        (["stages.1.critic.stage=warmup"], "has no use for a critic"),
        (
            ["stages.1.reference.stage=warmup"],
            "has no use for a reference as it is set",
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


def test_a_policy_is_distilled_from_another_model(tmp_path: Path) -> None:
    overrides = [
        "stages.1.algorithm.name=distillation",
        "stages.1.reference.stage=warmup",
        "stages.1.from=model",
        "stages.1.eval.every=null",
        "stages.0.steps=6",
        "train.steps=2",
        "store.detail=full",
        f"run.dir={tmp_path / 'run'}",
    ]
    with Trainer(load_config(write_config(tmp_path), overrides)) as trainer:
        trainer.train()
    rows = [row for row in metrics(tmp_path / "run") if row["stage"] == "rl" and row["step"]]
    assert all(row["optim/grad_norm"] > 0 for row in rows)
    # the untrained policy is far from its teacher, and minus that is the advantage
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "run"))
    advantages = [
        one.arrays["advantages"] for one in reader.annotations() if "ref_logprobs" in one.arrays
    ]
    assert advantages
    assert np.nanmean(np.concatenate(advantages)) < -0.1
