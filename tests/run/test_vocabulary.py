"""Models beside the policy that have another vocabulary, and models with fewer positions than a
stage's sequences, are refused before the first stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError, DataError
from agentrl.run.context import check_contexts
from agentrl.run.trainer import Trainer
from agentrl.run.vocabulary import check_vocabulary
from agentrl.training.models.tiny import build_tiny_model
from tests.run.tiny_run import CONFIG
from tests.run.tiny_task import demonstrations

SIZES: dict[str, Any] = {
    "hidden": 16,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 8,
}


def build(folder: Path, vocab_size: int) -> Path:
    build_tiny_model(
        folder,
        demonstrations(0),
        num_demonstrations=40,
        vocab_size=vocab_size,
        ff=16,
        **SIZES,
    )
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vocabulary")
    build(root / "policy", 300)
    build(root / "other", 275)
    (root / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("setting", "overrides"),
    [
        ("critic.path", ["stages.1.algorithm.name=ppo", "stages.1.critic.path=other"]),
        (
            "reference.path",
            ["stages.1.algorithm.kl_coef=0.1", "stages.1.reference.path=other"],
        ),
        (
            "reference.path",
            ["stages.1.algorithm.name=distillation", "stages.1.reference.path=other"],
        ),
        ("reward.model.path", ["stages.1.reward={model: {path: other}}"]),
    ],
)
def test_another_vocabulary_is_refused_before_the_first_stage(
    folders: Path, tmp_path: Path, setting: str, overrides: list[str]
) -> None:
    given = [f"run.dir={tmp_path / 'run'}", *overrides]
    told = (
        rf"^{setting}='{folders}/other' must have the vocabulary of the policy in "
        rf"{tmp_path}/run/models/start, .* got 275 tokens in place of \d{{3}}, and \d+ entries "
        "that differ; name a model that was trained from the same"
    )
    with (
        Trainer(load_config(folders / "config.yaml", given)) as trainer,
        pytest.raises(DataError, match=told),
    ):
        trainer.train()
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_same_vocabulary_passes(folders: Path, tmp_path: Path) -> None:
    check_vocabulary(folders / "policy", build(tmp_path / "twin", 300), "critic.path")


def test_a_model_without_a_tokenizer_is_named(folders: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(folders / "policy", tmp_path / "bare"))
    for path in (*bare.glob("token*"), bare / "config.json"):
        path.unlink()
    with pytest.raises(
        DataError,
        match=rf"critic\.path='{bare}' must have the tokenizer of the policy in .*policy",
    ):
        check_vocabulary(folders / "policy", bare, "critic.path")


def test_a_model_that_embeds_fewer_tokens_is_named(folders: Path, tmp_path: Path) -> None:
    small = Path(shutil.copytree(folders / "policy", tmp_path / "small"))
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))
    with pytest.raises(
        DataError,
        match=r"whose largest id is \d+, got 200 embeddings; name a model that was",
    ):
        check_vocabulary(folders / "policy", small, "critic.path")


@pytest.mark.parametrize(
    ("setting", "overrides", "longest"),
    [
        ("model.path", ["rollout.context_tokens=2049"], 2048),
        (
            "critic.path",
            ["stages.1.algorithm.name=ppo", "stages.1.critic.path=short"],
            100,
        ),
    ],
)
def test_sequences_beyond_a_models_positions_are_refused_before_the_first_stage(
    folders: Path, setting: str, overrides: list[str], longest: int
) -> None:
    short = folders / "short"
    short.mkdir(exist_ok=True)
    config = json.loads((folders / "policy" / "config.json").read_text())
    (short / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 100})
    )
    stages = load_config(folders / "config.yaml", overrides).resolved_stages()
    told = rf"^rollout\.context_tokens must be at most {longest}, for which {setting}='.*; lower it"
    with pytest.raises(ConfigError, match=told):
        check_contexts(stages, folders / "policy")
    # what imitates cuts its demonstrations, and the trainer refuses what is longer
    check_contexts(stages[:1], short)
    check_contexts(
        load_config(folders / "config.yaml").resolved_stages(), folders / "policy"
    )
