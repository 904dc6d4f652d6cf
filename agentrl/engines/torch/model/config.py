"""What the engine's own decoder must know of a model, read from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.engines.torch.model.rope import ROPE_TYPES, Rope
from agentrl.errors import EngineError

SUPPORTED = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder of the Llama family: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

    Args:
        vocab_size: rows of the embedding, padding included.
        qkv_bias, output_bias, mlp_bias: which projections have a bias.
        qk_norm: RMSNorm over each head of queries and keys before the rotary embedding (Qwen3).
        tied: the head is the embedding.
        max_positions: positions that the model was made for.
    """

    architecture: str
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    norm_eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_positions: int

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Reads a configuration as ``PretrainedConfig.to_dict()`` or ``config.json`` has it, of a
        model that this decoder computes (``computed``).

        Raises:
            EngineError: a missing key.
        """
        model_type = config["model_type"]
        try:
            heads = config["num_attention_heads"]
            width = config["hidden_size"]
            attention_bias = bool(config.get("attention_bias"))
            return cls(
                architecture=model_type,
                vocab_size=config["vocab_size"],
                width=width,
                num_layers=config["num_hidden_layers"],
                num_heads=heads,
                num_kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or width // heads,
                ffn_width=config["intermediate_size"],
                norm_eps=config.get("rms_norm_eps", 1e-6),
                rope=Rope.from_hugging_face(config),
                tied=bool(config.get("tie_word_embeddings")),
                qkv_bias=attention_bias or model_type == "qwen2",
                output_bias=attention_bias and model_type != "qwen2",
                mlp_bias=bool(config.get("mlp_bias")),
                qk_norm=model_type == "qwen3",
                max_positions=config.get("max_position_embeddings", 2048),
            )
        except KeyError as error:
            raise EngineError(
                f"config.json of a {model_type} model needs {error.args[0]!r}, which is missing; "
                "save the model again with save_pretrained",
                retryable=False,
            ) from error


def computed(config: Mapping[str, Any]) -> bool:
    """Whether the engine's own decoder computes a model: never a silent approximation."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return (
        config.get("model_type") in SUPPORTED
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("use_sliding_window")
        and set(config.get("layer_types") or ()) <= {"full_attention"}
        and scaling.get("rope_type", scaling.get("type", "default")) in ROPE_TYPES
    )
