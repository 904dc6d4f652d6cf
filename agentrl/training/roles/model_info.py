"""Model info: sizes of a role's model that the driver needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.training.models.packed_model import PackedModel


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the driver must know of a model.

    Args:
        num_parameters: in all, tied ones once.
        vocab_size: of the output layer, padding included.
        length_scale: ℓ of the partition's cost n + n²/ℓ, tokens.
        max_tokens: longest sequence that it has positions for; None where it sets no bound.
    """

    num_parameters: int
    vocab_size: int
    length_scale: float
    max_tokens: int | None = None


def model_facts(model: PackedModel) -> ModelInfo:
    """Sizes of a model that is not sharded yet."""
    config: Any = model.config.get_text_config()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    # a token costs 6P in its products, and 6·2·n/2·width in the scores of each layer at length n
    width = config.num_attention_heads * getattr(
        config, "head_dim", config.hidden_size // config.num_attention_heads
    )
    scale = num_parameters / (config.num_hidden_layers * width)
    longest = getattr(config, "max_position_embeddings", None)
    return ModelInfo(num_parameters, int(config.vocab_size), float(scale), longest)
