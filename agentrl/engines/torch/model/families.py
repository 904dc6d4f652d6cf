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
