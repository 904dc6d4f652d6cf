"""Attention over a packed row: each sample attends to itself alone, and to what it shares with its siblings.

Registered with transformers as ``segments``, so that any model with the attention interface can use it. On a CPU one
call a sample is as fast as padding sorted samples; on a GPU ``flash_attention_2`` does a row without families in one
kernel.

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
from agentrl.training.packing import Family

__all__ = ["SEGMENTS", "Masks", "attention_arguments", "segment_attention"]

SEGMENTS = "segments"


class Masks:
    """The masks of a row's samples, each made once for all layers."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int | None], Tensor] = {}

    def get(self, like: Tensor, earlier: int, own: int, window: int | None) -> Tensor | None:
        """``[own, earlier + own]``, 0 where a query sees a key and -inf elsewhere; None for a plain causal one.

        The mask of a shorter sample is its corner.

        Args:
            like: what has the dtype and device.
            earlier: keys before the first query.
            own: queries.
            window: keys that a query sees, itself among them; None is all up to itself.
        """
        if window is not None and window >= earlier + own:
            window = None
        if not earlier and window is None:
            return None
        mask = self._made.get((earlier, own, window))
        if mask is None:
            position = torch.arange(earlier + own, device=like.device)
            distance = position[earlier:, None] - position
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
            self._made[earlier, own, window] = mask
        return mask


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    families: Sequence[Family],
    masks: Masks,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sample.

    Args:
        module: the attention layer; unused, part of transformers' interface.
        query: ``[1, H, T, D]``.
        key, value: ``[1, K, T, D]``; each key head serves H / K query heads.
        attention_mask: None, always: transformers makes no mask for an implementation that it doesn't know.
        families: of the row, in its order; their tokens add up to T.
        masks: those that the row's layers have made so far.
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
    outputs: list[Tensor] = []
    pieces = [piece for family in families for piece in (family.shared, *family.own)]
    parts = zip(*(torch.split(tensor, pieces, 2) for tensor in (query, key, value)), strict=True)
    for family in families:
        shared_q, shared_k, shared_v = next(parts)
        if family.shared:
            mask = masks.get(query, 0, family.shared, sliding_window)
            outputs.append(_attend(shared_q, shared_k, shared_v, mask, scaling))
        mask = masks.get(query, family.shared, max(family.own), sliding_window)
        for length in family.own:
            q, k, v = next(parts)
            if family.shared:
                k, v = torch.cat([shared_k, k], dim=2), torch.cat([shared_v, v], dim=2)
            own_mask = None if mask is None else mask[:length, : k.shape[2]]
            outputs.append(_attend(q, k, v, own_mask, scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Attention under ``mask``; causal without one."""
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def attention_arguments(attention: str, families: Sequence[Family], device: torch.device) -> dict[str, Any]:
    """What a packed forward passes down to the attention function named ``attention``."""
    if attention == SEGMENTS:
        return {"families": tuple(families), "masks": Masks()}
    lengths = [family.num_tokens for family in families]
    ends = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


AttentionInterface.register(SEGMENTS, segment_attention)
