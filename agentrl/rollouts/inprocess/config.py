"""What the decoder must know of a model, read from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import EngineError

__all__ = ["DecoderConfig"]

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
    rope_theta: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_positions: int

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Reads a configuration as ``PretrainedConfig.to_dict()`` or ``config.json`` has it.

        Raises:
            EngineError: an architecture, activation, attention or rotary scaling that this decoder does not
                compute, or a missing key; never a silent approximation.
        """
        model_type = str(config.get("model_type"))
        if model_type not in SUPPORTED:
            raise _unsupported("model_type", model_type, ", ".join(SUPPORTED))
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise _unsupported("hidden_act", activation, "silu")
        sliding = "sliding_attention" in (config.get("layer_types") or ())
        if config.get("use_sliding_window") or sliding:
            raise _unsupported("use_sliding_window", True, "full attention in every layer")
        try:
            heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
            attention_bias = bool(config.get("attention_bias", False))
            return cls(
                architecture=model_type,
                vocab_size=int(config["vocab_size"]),
                width=width,
                num_layers=int(config["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or width // heads),
                ffn_width=int(config["intermediate_size"]),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                rope_theta=_rope_theta(config),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=attention_bias or model_type == "qwen2",
                output_bias=attention_bias and model_type != "qwen2",
                mlp_bias=bool(config.get("mlp_bias", False)),
                qk_norm=model_type == "qwen3",
                max_positions=int(config.get("max_position_embeddings", 2048)),
            )
        except KeyError as error:
            raise EngineError(
                f"config.json of a {model_type} model needs {error.args[0]!r}, which is missing; "
                "save the model again with save_pretrained",
                retryable=False,
            ) from error


def _rope_theta(config: Mapping[str, Any]) -> float:
    """The base of the rotary frequencies; both spellings of config.json (``rope_parameters`` since transformers 5)."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise _unsupported("rope_parameters.rope_type", kind, "default")
    return float(parameters.get("rope_theta", config.get("rope_theta", 10_000.0)))


def _unsupported(key: str, value: object, supported: str) -> EngineError:
    return EngineError(
        f"TorchEngine computes models with {key} in ({supported}), config.json says {value!r}; "
        "choose such a model, or another rollout.engine (sglang)",
        retryable=False,
    )
