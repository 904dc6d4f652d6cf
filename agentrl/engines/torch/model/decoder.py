"""The engine's own forward pass: one token a row (``decode``), or a chunk of tokens a row
(``prefill``).

Legend: N decode rows, M rows being prefilled, T tokens of a chunk, L keys attended to, D width, H
heads, K key-value heads, G = H/K queries a key-value head, E head_dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from agentrl.engines.torch.kv_cache import KVCache, KVShape, additive_mask
from agentrl.engines.torch.model.families import FAMILIES, head_width
from agentrl.engines.torch.model.served_model import ServedModel, WeightPlace
from agentrl.engines.torch.row_layout import Blocks


@dataclass(slots=True)
class LayerWeights:
    """One layer. Legend: D width, H heads, K key-value heads, E head_dim, F ffn width.

    Queries and keys are stored with the two halves of each head interleaved (0, E/2, 1, E/2+1,
    ...), so that the rotary embedding is one complex product.

    Args:
        qkv: ``[(H+2K)·E, D]``. qkv_bias: ``[(H+2K)·E]`` or None.
        qk_norm: ``[H+K, E]`` gains, each head its own copy, or None.
        output: ``[D, H·E]``. gate_up: ``[2F, D]``. down: ``[D, F]``, and their biases or None.
        attention_norm, ffn_norm: ``[D]``.
    """

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    ffn_norm: Tensor
    qkv_bias: Tensor | None
    output_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    qk_norm: Tensor | None


class DecoderWeights(ServedModel):
    """All weights of a Llama-family decoder: RMSNorm, rotary embedding, grouped-query attention,
    SwiGLU.

    Args:
        config: transformers' own, of a model that this decoder computes (``families.computed``).
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype, device)
        self.config = config
        self.kind = config.model_type
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_position_embeddings
        self.num_heads = config.num_attention_heads
        self.norm_eps = config.rms_norm_eps
        width = config.hidden_size
        self.kv_shape = KVShape(
            config.num_hidden_layers, config.num_key_value_heads, head_width(config)
        )
        # radians a position, in float32; the scalings that are computed here keep the amplitude
        self.frequencies: Tensor = LlamaRotaryEmbedding(config).inv_freq
        self.embedding = self._new("model.embed_tokens.weight", self.vocab_size, width)
        self.head = self.embedding
        if config.tie_word_embeddings:
            self.aliases["lm_head.weight"] = "model.embed_tokens.weight"
        else:
            self.head = self._new("lm_head.weight", self.vocab_size, width)
        self.norm = self._new("model.norm.weight", width)
        layers = range(config.num_hidden_layers)
        self.layers = [self._layer(f"model.layers.{index}.") for index in layers]

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
        D = config.hidden_size
        E = self.kv_shape.head_dim
        F = config.intermediate_size
        H = self.num_heads
        K = self.kv_shape.heads
        has_bias = bool(getattr(config, "attention_bias", False))
        mlp_bias = bool(getattr(config, "mlp_bias", False))
        family = FAMILIES[self.kind]
        qkv_bias = has_bias or family.qkv_bias
        output_bias = has_bias and not family.qkv_bias
        attention = prefix + "self_attn."
        mlp = prefix + "mlp."
        layer = LayerWeights(
            qkv=self._empty((H + 2 * K) * E, D),
            output=self._new(attention + "o_proj.weight", D, H * E),
            gate_up=self._empty(2 * F, D),
            down=self._new(mlp + "down_proj.weight", D, F),
            attention_norm=self._new(prefix + "input_layernorm.weight", D),
            ffn_norm=self._new(prefix + "post_attention_layernorm.weight", D),
            qkv_bias=self._empty((H + 2 * K) * E) if qkv_bias else None,
            output_bias=self._new(attention + "o_proj.bias", D) if output_bias else None,
            gate_up_bias=self._empty(2 * F) if mlp_bias else None,
            down_bias=self._new(mlp + "down_proj.bias", D) if mlp_bias else None,
            qk_norm=self._empty(H + K, E) if family.qk_norm else None,
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
            self.places[f"{attention}q_norm.weight"] = WeightPlace(
                (E,), gains[:H], copies=True
            )
            self.places[f"{attention}k_norm.weight"] = WeightPlace(
                (E,), gains[H:], copies=True
            )
        for fused, suffix in ((layer.gate_up, "weight"), (layer.gate_up_bias, "bias")):
            if fused is not None:
                self.places[f"{mlp}gate_proj.{suffix}"] = WeightPlace.of(fused[:F])
                self.places[f"{mlp}up_proj.{suffix}"] = WeightPlace.of(fused[F:])
        return layer


class NativeDecoder:
    """A Llama-family decoder over a static KV cache.

    Attention is two batched matrix products, not ``scaled_dot_product_attention``: with one query a
    row they are faster on a CPU, and they do not slow down under
    ``torch.set_float32_matmul_precision("medium")``.
    """

    def __init__(self, weights: DecoderWeights, kv: KVCache) -> None:
        self._weights = weights
        self._kv = kv
        self._H = weights.num_heads
        self._K = weights.kv_shape.heads
        self._E = weights.kv_shape.head_dim
        self._qk_width = (self._H + self._K) * self._E
        self._scale = self._E**-0.5
        self._eps = weights.norm_eps
        self._fp32 = weights.dtype == torch.float32
        device = weights.device
        # oneDNN's bf16 product of keys that lie apart takes three times as long as copying them
        # together first
        self._dense_keys = not self._fp32 and device.type == "cpu"
        # In float32 whatever the weights are: bfloat16 has no odd number above 256.
        angles = torch.outer(torch.arange(kv.capacity).float(), weights.frequencies)
        # [capacity, E/2]
        self._rope = torch.polar(torch.ones_like(angles), angles).to(device)
        self._key_positions = torch.arange(kv.capacity, device=device)

    def decode(self, tokens_N: Tensor, positions_N: Tensor, blocks: Blocks) -> Tensor:
        """See ``Forward.decode``."""
        kv = self._kv
        K = self._K
        E = self._E
        N = tokens_N.shape[0]
        index = kv.show(positions_N)
        hidden = self._weights.embedding.index_select(0, tokens_N)
        rope = self._rope.index_select(0, positions_N).unsqueeze(1)
        bias = kv.bias[:N].view(N * K, 1, kv.capacity)
        for number, layer in enumerate(self._weights.layers):
            queries = self._project(hidden, number, rope, index).view(N * K, -1, E)
            keys, values = (
                kind[number, :N].view(N * K, kv.capacity, E)
                for kind in (kv.keys, kv.values)
            )
            parts = []
            first = 0
            for end, num_keys in blocks:
                rows = slice(first * K, end * K)
                scores = self._scores(
                    queries[rows], keys[rows, :num_keys], bias[rows, :, :num_keys]
                )
                parts.append(torch.bmm(self._softmax(scores), values[rows, :num_keys]))
                first = end
            attended = parts[0] if len(parts) == 1 else torch.cat(parts)
            hidden = self._finish_layer(hidden, attended.view(N, -1), layer)
        return self._logits(hidden)

    def prefill(
        self,
        tokens_MT: Tensor,
        positions_MT: Tensor,
        rows_M: Tensor,
        last_M: Tensor,
        num_keys: int,
    ) -> Tensor:
        """See ``Forward.prefill``; ``num_keys`` is L. In the last layer all tokens but each row's
        last give keys and values alone."""
        kv = self._kv
        K = self._K
        E = self._E
        M, T = tokens_MT.shape
        hidden = self._weights.embedding.index_select(0, tokens_MT.view(-1))
        rope = self._rope.index_select(0, positions_MT.view(-1)).unsqueeze(1)
        index = kv.flat_index(rows_M, positions_MT)
        # [M, T, L]
        later_keys = self._key_positions[:num_keys] > positions_MT[:, :, None]
        mask = additive_mask(later_keys, hidden.dtype)
        for number, layer in enumerate(self._weights.layers):
            queries = self._project(hidden, number, rope, index)
            if number == len(self._weights.layers) - 1:
                each = torch.arange(M, device=hidden.device)
                ends = each * T + last_M
                hidden = hidden.index_select(0, ends)
                queries = queries.index_select(0, ends)
                mask = mask[each, last_M]
                T = 1
            # [M·K, L, E]
            keys, values = (
                states.flatten(0, 1) for states in kv.read(number, rows_M, num_keys)
            )
            # [M·K, G·T, E]
            grouped = (
                queries.view(M, T, K, -1, E).permute(0, 2, 3, 1, 4).reshape(M * K, -1, E)
            )
            scores = torch.bmm(grouped, keys.transpose(1, 2)).mul_(self._scale)
            scores.view(M, K, -1, T, num_keys).add_(mask.view(M, 1, 1, T, num_keys))
            attended = torch.bmm(self._softmax(scores), values).view(M, K, -1, T, E)
            attended = attended.permute(0, 3, 1, 2, 4).reshape(M * T, -1)
            hidden = self._finish_layer(hidden, attended, layer)
        return self._logits(hidden)

    def _project(self, hidden: Tensor, number: int, rope: Tensor, index: Tensor) -> Tensor:
        """Writes a layer's rotated keys and its values to a flat index; the rotated queries
        ``[n, H, E]``, contiguous.
        """
        layer = self._weights.layers[number]
        normed = functional.rms_norm(
            hidden, (hidden.shape[-1],), layer.attention_norm, self._eps
        )
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
        # HF's order of heads, halves interleaved
        heads = qkv[:, : self._qk_width].view(-1, self._H + self._K, self._E)
        if layer.qk_norm is not None:
            heads = functional.rms_norm(heads, (self._E,), None, self._eps) * layer.qk_norm
        # torch has no complex numbers of bfloat16.
        pairs = torch.view_as_complex(
            (heads if self._fp32 else heads.float()).view(
                -1, self._H + self._K, self._E // 2, 2
            )
        )
        queries = torch.view_as_real(pairs[:, : self._H] * rope).flatten(-2)
        keys = torch.view_as_real(pairs[:, self._H :] * rope).flatten(-2)
        if not self._fp32:
            queries = queries.to(hidden.dtype)
            keys = keys.to(hidden.dtype)
        flat_keys, flat_values = self._kv.flat[number]
        flat_keys.index_copy_(0, index, keys.view(-1, self._E))
        flat_values.index_copy_(0, index, qkv[:, self._qk_width :].reshape(-1, self._E))
        return queries

    def _scores(self, queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Scaled and masked scores of one query a row."""
        if self._dense_keys:
            return (
                torch.bmm(queries, keys.contiguous().transpose(1, 2))
                .mul_(self._scale)
                .add_(bias)
            )
        return torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=self._scale)

    def _softmax(self, scores: Tensor) -> Tensor:
        # In float32, as transformers' own attention does it.
        return (
            scores.softmax(-1)
            if self._fp32
            else scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
        )

    def _finish_layer(
        self, hidden: Tensor, attended: Tensor, layer: LayerWeights
    ) -> Tensor:
        hidden = _residual(hidden, attended, layer.output, layer.output_bias)
        normed = functional.rms_norm(hidden, (hidden.shape[-1],), layer.ffn_norm, self._eps)
        gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(
            2, dim=-1
        )
        return _residual(
            hidden, functional.silu(gate).mul_(up), layer.down, layer.down_bias
        )

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = functional.rms_norm(
            hidden, (hidden.shape[-1],), self._weights.norm, self._eps
        )
        return functional.linear(normed.float(), self._weights.head_fp32)


def _residual(
    hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    total = torch.addmm(hidden, update, weight.t())
    return total if bias is None else total.add_(bias)


def _interleaved(fused: Tensor, heads: int) -> Tensor:
    """``[heads, 2, E/2, ...]``: a view in Hugging Face order of rows stored interleaved."""
    return fused.view(heads, -1, 2, *fused.shape[1:]).transpose(1, 2)
