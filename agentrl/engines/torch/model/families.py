"""Families: what is told here of a model type.

Names of weights, how they lie and which experts make a stack are transformers' own conversion
(``folder_names``).

The layers of these are Llama's: RMSNorm, rotary embedding, grouped-query attention and SwiGLU, with
projections of the same names. ``TorchEngine`` computes them by its own decoder, and tensor
parallelism divides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.engines.weights import read_config


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """How the layers of a family differ from Llama's.

    Args:
        qkv_bias: queries, keys and values alone have biases, whatever the configuration says.
        qk_norm: each head of queries and keys is normed.
    """

    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES: Mapping[str, DecoderFamily] = {
    "llama": DecoderFamily(),
    "qwen2": DecoderFamily(qkv_bias=True),
    "qwen3": DecoderFamily(qk_norm=True),
}
"""By ``model_type``."""


ATTENTION_OF: Mapping[str, str] = {"qwen3_moe": "qwen3"}
"""Of mixtures, the family that has all of their layers but the experts."""

VISION = ("qwen2_5_vl", "qwen3_vl")
"""Families that see images, and are trained and served with them, by ``model_type``."""


@dataclass(frozen=True, slots=True)
class MixtureFamily:
    """How a family's mixture of experts routes a token.

    Args:
        router: the attribute of the mixture that holds the router's weight; its experts are
            ``experts`` in all of them.
        answers_gates: the mixture returns the gates beside the hidden states.
        is_llama: whether its other layers are Llama's, so that tensor parallelism divides them.
    """

    router: str = "gate"
    answers_gates: bool = False
    is_llama: bool = True


MIXTURES: Mapping[str, MixtureFamily] = {
    "qwen3_moe": MixtureFamily(),
    "mixtral": MixtureFamily(),
    # a logit of its attention belongs to no token, and is a parameter of each head
    "gpt_oss": MixtureFamily(router="router", answers_gates=True, is_llama=False),
}
"""Mixtures of experts that the trainer routes itself, by ``model_type``; of others transformers'
own forward is trained."""


def is_mixture(folder: Path) -> bool:
    """Whether a Hugging Face folder has one of these."""
    return (folder / "config.json").is_file() and read_config(folder).get(
        "model_type"
    ) in MIXTURES


def computed(config: Mapping[str, Any]) -> bool:
    """Whether the engine's own decoder computes a model, by its ``config.json``: never a silent
    approximation. The same models can be computed in fixed shapes.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return (
        config.get("model_type") in FAMILIES
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("use_sliding_window")
        and set(config.get("layer_types") or ()) <= {"full_attention"}
        and scaling.get("rope_type", scaling.get("type", "default"))
        in ("default", "linear", "llama3")
    )


def head_width(config: Any) -> int:
    """Numbers of a head of attention; transformers' configuration may leave it to the width."""
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def query_width(config: Any) -> int:
    """Numbers of a token's queries in all layers, whose heads may differ, by transformers'
    configuration."""
    layers = [config] * config.num_hidden_layers
    if getattr(config, "is_heterogeneous", False):
        layers = list(config.per_layer_config)
    return sum(layer.num_attention_heads * head_width(layer) for layer in layers)


def max_positions(config: Any) -> int | None:
    """Tokens of the longest sequence, by transformers' configuration of a model of text; None
    where it sets no bound. A rotary scaling that follows the longest sequence of a batch, so that
    one changes the others, bounds it where it begins.
    """
    bounds = [getattr(config, "max_position_embeddings", None)]
    parameters = getattr(config, "rope_parameters", None) or {}
    # it may have parts by the kinds of layers
    for scaling in (
        parameters,
        *(one for one in parameters.values() if isinstance(one, dict)),
    ):
        if scaling.get("rope_type") in ("dynamic", "longrope"):
            bounds.append(scaling.get("original_max_position_embeddings"))
    return min((int(bound) for bound in bounds if bound), default=None)
