"""Vocabulary: the models that read the policy's tokens must have its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.config import StageConfig
from agentrl.errors import DataError
from agentrl.store.model_folder import given_model


def check_vocabularies(stages: Sequence[StageConfig], model: Path) -> None:
    """Refuses the critic, reference or reward model of any stage that comes from elsewhere and has
    another vocabulary than the run's model; before the first stage, since what stages train keeps
    that model's.

    Args:
        stages: whole.
        model: the folder that the run starts from.

    Raises:
        DataError: the vocabularies differ, or a folder does not exist or has no tokenizer.
    """
    for stage in stages:
        scorer = stage.reward.model.path if stage.plays else None
        others = {f"{key}.path": own.path for key, own in stage.others.items()}
        for setting, path in {**others, "reward.model.path": scorer}.items():
            if path is not None and not stage.replays:
                other = given_model(path, stage.base_dir, key=setting)
                check_vocabulary(model, other, setting)


def check_vocabulary(policy: Path, other: Path | None, setting: str) -> None:
    """Refuses a model that reads the policy's tokens and has another vocabulary.

    Args:
        policy: its folder.
        other: that of the other.
        setting: what names the other.

    Raises:
        DataError: the vocabularies differ, or the other has no tokenizer or fewer embeddings than
            the policy's tokens.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        own, theirs = (
            AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
            for folder in (policy, other)
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{setting}={str(other)!r} must have the tokenizer of the policy in {policy}, since it "
            f"reads the policy's own tokens, but one of the two cannot be read: {error}; save the "
            "tokenizer beside each model"
        ) from error
    if own != theirs:
        raise DataError(
            f"{setting}={str(other)!r} must have the vocabulary of the policy in {policy}, since "
            f"it reads the policy's own tokens, got {len(theirs)} tokens in place of {len(own)}, "
            f"and {len(set(own.items()) ^ set(theirs.items()))} entries that differ; name a model "
            "that was trained from the same one"
        )
    rows = (
        AutoConfig.from_pretrained(other, local_files_only=True)
        .get_text_config()
        .vocab_size
    )
    largest = max(own.values(), default=0)
    if largest >= rows:
        raise DataError(
            f"{setting}={str(other)!r} must embed every token of the policy in {policy}, whose "
            f"largest id is {largest}, got {rows} embeddings; name a model that was trained from "
            "the same one"
        )
