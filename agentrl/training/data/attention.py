"""Segment attention: causal attention within each sample of a packed row, over shared prefixes.

- It is registered with transformers as ``segments``, so that any model with the attention interface
  can use it.
- On a CPU one call a sample is as fast as padding sorted samples. On a GPU, ``flash_attention_2``
  computes a row without shared prefixes in one kernel.

Shapes: H query heads, K key heads, T packed tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.errors import ConfigError
from agentrl.training.data.prefix_tree import ROOT, Span

SEGMENTS = "segments"


QUERIES = 512
"""Of one call where a mask is needed: it then grows with a row's tokens, not with their square."""


class Block(NamedTuple):
    """Queries of a span that attend in one call.

    Args:
        query: the first of them, of the span's.
        size: how many.
        key: the first key that any of them sees, of the keys on the span's path.
        stop: the key after the last one.
        mask: ``[size, stop - key]``, 0 for a visible key and -inf elsewhere; None for plain causal
            attention.
    """

    query: int
    size: int
    key: int
    stop: int
    mask: Tensor | None


class Masks:
    """The attention masks of a row's spans: views of one mask that all layers share.

    Args:
        spans: the row's spans.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._longest = max(span.first + span.size for span in spans)
        self._made: dict[int | None, Tensor] = {}

    def blocks(self, like: Tensor, span: Span, window: int | None) -> Iterator[Block]:
        """The calls that a span's queries take.

        Args:
            like: has the masks' dtype and device.
            span: the span of the queries.
            window: the keys that a query sees, itself included; None for all up to itself.
        """
        if window is not None and window >= span.first + span.size:
            window = None
        if not span.first and window is None:
            yield Block(0, span.size, 0, span.size, None)
            return
        whole = self._mask(like, window)
        for query in range(0, span.size, QUERIES):
            size = min(QUERIES, span.size - query)
            place = span.first + query  # of the first query in its sample
            key = 0 if window is None else max(0, place - window + 1)
            # it depends on distances alone, so that of an earlier query lies further right
            left = self._longest - place
            yield Block(
                query, size, key, place + size, whole[:size, left + key : left + place + size]
            )

    def _mask(self, like: Tensor, window: int | None) -> Tensor:
        """``[rows, longest + rows]``: of queries whose first has ``longest`` keys before it."""
        if window not in self._made:
            rows = min(QUERIES, self._longest)
            query = torch.arange(rows, device=like.device)[:, None] + self._longest
            distance = query - torch.arange(self._longest + rows, device=like.device)
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            self._made[window] = torch.zeros(
                hidden.shape, dtype=like.dtype, device=like.device
            ).masked_fill_(hidden, -torch.inf)
        return self._made[window]


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    spans: Sequence[Span],
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
        attention_mask: always None: transformers makes no mask for an unknown implementation.
        spans: the row's spans in order; their sizes add up to T.
        masks: the row's masks.
        scaling: of the scores; None is D to the power -1/2.
        sliding_window: the tokens that each token sees, itself included.
        extras: further arguments of a model family; a value that changes the result is refused.

    Returns:
        ``[1, T, H, D]`` and None, as in transformers' interface.

    Raises:
        ConfigError: the family caps its scores or has attention sinks, which are not supported
            here.
    """
    for name in ("softcap", "s_aux"):
        if extras.get(name) is not None:
            raise ConfigError(
                f"ActorSpec.model_path: this family's attention uses {name!r}, which "
                "attention='segments' lacks; train it on a GPU with attention='flash_attention_2'"
            )
    outputs: list[Tensor] = []
    seen: list[tuple[Tensor, Tensor]] = []  # keys and values of each span's path
    parts = zip(
        *(torch.split(tensor, [span.size for span in spans], 2) for tensor in (query, key, value)),
        strict=True,
    )
    for span, (q, k, v) in zip(spans, parts, strict=True):
        if span.parent != ROOT:
            earlier_k, earlier_v = seen[span.parent]
            k = torch.cat([earlier_k, k], dim=2)
            v = torch.cat([earlier_v, v], dim=2)
        seen.append((k, v))
        outputs += [
            scaled_dot_product_attention(
                q[:, :, block.query : block.query + block.size],
                k[:, :, block.key : block.stop],
                v[:, :, block.key : block.stop],
                attn_mask=block.mask,
                is_causal=block.mask is None,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            for block in masks.blocks(query, span, sliding_window)
        ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def attention_arguments(
    attention: str, spans: Sequence[Span], device: torch.device
) -> dict[str, Any]:
    """The arguments of a packed forward pass for the attention function named ``attention``."""
    if attention == SEGMENTS:
        return {"spans": tuple(spans), "masks": Masks(spans)}
    lengths = [span.size for span in spans]
    ends = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


AttentionInterface.register(SEGMENTS, segment_attention)
