"""Tensor parallelism of engines: which slices of the folder's tensors each rank of a server holds,
in layers that are Llama's (arXiv:1909.08053).

- Projections to queries, keys, values, gate and up are divided by rows, and fused; output and down
  projections by columns, embedding and output layer by the vocabulary.
- All else is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agentrl.engines.tensor_slice import TensorSlice


@dataclass(frozen=True, slots=True)
class ShardTensor:
    """A tensor as one rank of an engine holds it: slices behind each other along the first
    dimension, then zeros.

    Args:
        name: the engine's own; of fused projections ``qkv_proj`` and ``gate_up_proj``.
        shape: as the rank holds it.
        parts: what it is made of, in order.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[TensorSlice, ...]


Shards: TypeAlias = tuple[tuple[ShardTensor, ...], ...]
"""What each rank of an engine holds."""

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""The folder's projections of an engine's, in order."""
_FUSED_NAMES = {layer: fused for fused, layers in FUSED.items() for layer in layers}


def tensor_parallel_shards(
    shapes: Mapping[str, tuple[int, ...]],
    tp: int,
    *,
    kv_heads: int,
    vocab_multiple: int = 64,
) -> Shards:
    """What each of ``tp`` ranks holds.

    Args:
        shapes: of the folder's tensors; a tied output layer is left out.
        tp: divides what is divided.
        kv_heads: of a layer; where they are fewer than ranks, neighbours hold the same one.
        vocab_multiple: the vocabulary is filled up to a multiple of it; SGLang's default.

    Raises:
        ValueError: a matrix that is none of such a layer.
    """
    if vocab_multiple % tp:
        vocab_multiple *= tp
    ranks = []
    for rank in range(tp):
        parts: dict[str, list[TensorSlice]] = {}
        for name, shape in shapes.items():
            own = _slice_of(
                TensorSlice.whole(name, shape), rank, tp, kv_heads, vocab_multiple
            )
            layer = name.split(".")[-2]
            fused = _FUSED_NAMES.get(layer, layer)
            parts.setdefault(name.replace(f".{layer}.", f".{fused}."), []).append(own)
        ranks.append(
            tuple(
                _shard_tensor(name, own, tp, vocab_multiple) for name, own in parts.items()
            )
        )
    return tuple(ranks)


def _slice_of(
    whole: TensorSlice, rank: int, tp: int, kv_heads: int, vocab_multiple: int
) -> TensorSlice:
    layer = whole.name.split(".")[-2]
    if layer in ("k_proj", "v_proj") and kv_heads < tp:
        return _nth(whole, 0, rank * kv_heads // tp, kv_heads)
    if layer in _FUSED_NAMES:
        return _nth(whole, 0, rank, tp)
    if layer in ("embed_tokens", "lm_head"):
        rows = _rows_of_vocabulary(whole, tp, vocab_multiple)
        first, end = (min(whole.shape[0], place * rows) for place in (rank, rank + 1))
        return whole.part(0, first, end)
    if len(whole.shape) < 2:
        return whole
    if layer in ("o_proj", "down_proj"):
        return _nth(whole, 1, rank, tp)
    raise ValueError(f"{whole.name!r} {whole.shape} is no matrix of a layer like Llama's")


def _nth(whole: TensorSlice, dim: int, number: int, count: int) -> TensorSlice:
    """One of equal parts."""
    size = whole.shape[dim] // count
    return whole.part(dim, number * size, (number + 1) * size)


def _rows_of_vocabulary(whole: TensorSlice, tp: int, vocab_multiple: int) -> int:
    return -(-whole.shape[0] // vocab_multiple) * vocab_multiple // tp


def _shard_tensor(
    name: str, parts: list[TensorSlice], tp: int, vocab_multiple: int
) -> ShardTensor:
    """Slices in the engine's order, whichever the folder's is."""
    layer = name.split(".")[-2]
    if layer in FUSED:
        order = FUSED[layer]
        parts = sorted(parts, key=lambda own: order.index(own.name.split(".")[-2]))
    rows = sum(own.size[0] for own in parts)
    if layer in ("embed_tokens", "lm_head"):
        rows = _rows_of_vocabulary(parts[0], tp, vocab_multiple)
    return ShardTensor(name, (rows, *parts[0].size[1:]), tuple(parts))
