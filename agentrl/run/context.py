"""Context: the longest sequences of a stage, which its models must read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.config import StageConfig
from agentrl.engines.torch.model.families import max_positions
from agentrl.errors import ConfigError
from agentrl.store.model_folder import given_model


def check_contexts(stages: Sequence[StageConfig], model: Path) -> None:
    """Refuses a stage that samples longer sequences than its policy, or a model beside it on the
    ranks, has positions for; before the first stage, since what stages train keeps that model's.

    Args:
        stages: whole.
        model: the folder that the run starts from.

    Raises:
        ConfigError: as said.
        DataError: a folder does not exist.
    """
    for stage in stages:
        if not stage.plays or stage.replays:
            continue
        check_context(stage.context_tokens, model, "model.path")
        for key, other in stage.others.items():
            if other.path is not None:
                folder = given_model(other.path, stage.base_dir, key=f"{key}.path")
                check_context(stage.context_tokens, folder, f"{key}.path")


def check_context(context_tokens: int, folder: Path, setting: str) -> None:
    """Refuses a model that has positions for fewer tokens.

    Args:
        context_tokens: of the longest sequence.
        folder: of the model.
        setting: what names it.

    Raises:
        ConfigError: as said.
    """
    longest = _positions(folder)
    if longest is not None and context_tokens > longest:
        raise ConfigError(
            f"rollout.context_tokens must be at most {longest}, for which {setting}="
            f"{str(folder)!r} has positions (its max_position_embeddings, or where a rotary "
            f"scaling by the longest sequence begins), got {context_tokens}; lower it"
        )


def longest_sequence(stage: StageConfig, model: Path) -> int:
    """The most tokens of a sequence that is given and not sampled, such as a demonstration: the
    stage's own bound, or that of its model.

    Args:
        stage: whole.
        model: the folder that it starts from.
    """
    positions = _positions(model)
    return (
        stage.context_tokens if positions is None else min(stage.context_tokens, positions)
    )


def _positions(folder: Path) -> int | None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return max_positions(config.get_text_config())
