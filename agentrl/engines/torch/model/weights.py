"""The model's weights in the layout that the decoder multiplies with, addressed by their Hugging
Face names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.engines.torch.kv_cache import KVCache, KVShape
from agentrl.engines.torch.model.config import DecoderConfig
from agentrl.engines.torch.model.decoder import LayerWeights, NativeDecoder
from agentrl.engines.torch.model.served_model import ServedModel, WeightPlace


class DecoderWeights(ServedModel):
    """All weights of a Llama-family decoder."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype, device)
        self.config = config
        self.kind = config.architecture
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.num_heads = config.num_heads
        self.kv_shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim)
        self.embedding = self._new("model.embed_tokens.weight", config.vocab_size, config.width)
        self.head = self.embedding
        if config.tied:
            self.aliases["lm_head.weight"] = "model.embed_tokens.weight"
        else:
            self.head = self._new("lm_head.weight", config.vocab_size, config.width)
        self.norm = self._new("model.norm.weight", config.width)
        self.layers = [self._layer(f"model.layers.{index}.") for index in range(config.num_layers)]

    def forward_over(self, kv: KVCache) -> NativeDecoder:
        """See ``ServedModel``."""
        return NativeDecoder(self, kv)

    def renew(self) -> None:
        """See ``ServedModel``. Logits are always computed in fp32: a bf16 result would round
        logprobs by up to 2**-9 of a logit."""
        self.head_fp32 = self.head.float()

    def _empty(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _new(self, name: str, *shape: int) -> Tensor:
        """A tensor that lies as it is in Hugging Face's model."""
        stored = self._empty(*shape)
        self.places[name] = WeightPlace.of(stored)
        return stored

    def _layer(self, prefix: str) -> LayerWeights:
        config = self.config
        D = config.width
        E = config.head_dim
        F = config.ffn_width
        H = config.num_heads
        K = config.num_kv_heads
        attention = prefix + "self_attn."
        mlp = prefix + "mlp."
        layer = LayerWeights(
            qkv=self._empty((H + 2 * K) * E, D),
            output=self._new(attention + "o_proj.weight", D, H * E),
            gate_up=self._empty(2 * F, D),
            down=self._new(mlp + "down_proj.weight", D, F),
            attention_norm=self._new(prefix + "input_layernorm.weight", D),
            ffn_norm=self._new(prefix + "post_attention_layernorm.weight", D),
            qkv_bias=self._empty((H + 2 * K) * E) if config.qkv_bias else None,
            output_bias=self._new(attention + "o_proj.bias", D) if config.output_bias else None,
            gate_up_bias=self._empty(2 * F) if config.mlp_bias else None,
            down_bias=self._new(mlp + "down_proj.bias", D) if config.mlp_bias else None,
            qk_norm=self._empty(H + K, E) if config.qk_norm else None,
        )
        for fused, suffix in ((layer.qkv, "weight"), (layer.qkv_bias, "bias")):
            if fused is not None:
                queries, keys, values = torch.split(fused, [H * E, K * E, K * E])
                for name, part, heads in (("q_proj", queries, H), ("k_proj", keys, K)):
                    self.places[f"{attention}{name}.{suffix}"] = WeightPlace(
                        tuple(part.shape), _interleaved(part, heads)
                    )
                self.places[f"{attention}v_proj.{suffix}"] = WeightPlace.of(values)
        if layer.qk_norm is not None:
            gains = _interleaved(layer.qk_norm.view(-1), H + K)
            self.places[f"{attention}q_norm.weight"] = WeightPlace((E,), gains[:H], copies=True)
            self.places[f"{attention}k_norm.weight"] = WeightPlace((E,), gains[H:], copies=True)
        for fused, suffix in ((layer.gate_up, "weight"), (layer.gate_up_bias, "bias")):
            if fused is not None:
                self.places[f"{mlp}gate_proj.{suffix}"] = WeightPlace.of(fused[:F])
                self.places[f"{mlp}up_proj.{suffix}"] = WeightPlace.of(fused[F:])
        return layer


def _interleaved(fused: Tensor, heads: int) -> Tensor:
    """``[heads, 2, E/2, ...]``: a view in Hugging Face order of rows stored interleaved."""
    return fused.view(heads, -1, 2, *fused.shape[1:]).transpose(1, 2)
