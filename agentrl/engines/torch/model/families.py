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
from typing import Any


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
