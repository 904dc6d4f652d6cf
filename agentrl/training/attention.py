"""Attention over a packed row: each sample attends to itself alone.

Registered with transformers as ``segments``, so that any model with the attention interface can use it. On a CPU one
call a sample is as fast as padding sorted samples, and a sample's numbers don't depend on its neighbours; on a GPU
``flash_attention_2`` does the same in one kernel.

Shapes: H query heads, K key heads, T packed tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import ConfigError

__all__ = ["SEGMENTS", "attention_arguments", "segment_attention"]

SEGMENTS = "segments"


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segment_lengths: Sequence[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment.

    Args:
        module: the attention layer; unused, part of transformers' interface.
        query: ``[1, H, T, D]``.
        key, value: ``[1, K, T, D]``; each key head serves H / K query heads.
        attention_mask: None, always: transformers makes no mask for an implementation that it doesn't know.
        segment_lengths: tokens of each sample; they add up to T.
        scaling: of the scores; None is D to the power -1/2.
        sliding_window: each token sees itself and this many less one before it.
        extras: what else a model family passes; a value that changes the result is refused.

    Returns:
        ``[1, T, H, D]`` and None, as the interface asks.

    Raises:
        ConfigError: the family caps its scores or has attention sinks, which this function doesn't do.
    """
    for name in ("softcap", "s_aux"):
        if extras.get(name) is not None:
            raise ConfigError(
                f"model.path: this family's attention uses {name!r}, which attention='segments' lacks; train it on a "
                "GPU with attention='flash_attention_2'"
            )
    grouped = query.shape[1] != key.shape[1]
    lengths = list(segment_lengths)
    outputs = [
        _one_segment(q, k, v, scaling, sliding_window, grouped)
        for q, k, v in zip(*(torch.split(tensor, lengths, 2) for tensor in (query, key, value)), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _one_segment(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, grouped: bool
) -> Tensor:
    length = query.shape[2]
    if window is None or window >= length:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
    position = torch.arange(length, device=query.device)
    distance = position[:, None] - position[None, :]
    visible = (distance >= 0) & (distance < window)
    return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling, enable_gqa=grouped)


def attention_arguments(attention: str, lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What a packed forward passes down to the attention function named ``attention``."""
    if attention == SEGMENTS:
        return {"segment_lengths": tuple(lengths)}
    ends = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


AttentionInterface.register(SEGMENTS, segment_attention)
