"""Segment attention: causal attention within each sample of a packed row, over shared prefixes.

- It is registered with transformers as ``segments``, so that any model with the attention interface
  can use it.
- On a CPU one call a sample is as fast as padding sorted samples. On a GPU ``kernel_attention``
  computes a row in one kernel.
- Masks follow from spans alone. Position ids turn keys and queries, and may have several axes.

Shapes: H query heads, K key heads, T packed tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.engines.torch.kv_cache import additive_mask
from agentrl.engines.torch.model.fixed_shapes import OrdinaryBackward, attend, whole_blocks
from agentrl.errors import ConfigError
from agentrl.training.data.prefix_tree import ROOT, Span

SEGMENTS = "segments"

FIXED = "fixed_segments"
"""Segments in fixed shapes, which a deterministic run takes: the engine's own arithmetic."""

REFERENCE = "reference_segments"
"""Segments by their definition, which stand on a CPU for any kernel of a GPU."""

BY_SPAN = frozenset({SEGMENTS, FIXED})
"""Attentions by one call a span, for a CPU."""

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
        spans: the row's spans in order.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = tuple(spans)
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
            # The place counts from the sample's first token.
            place = span.first + query
            key = 0 if window is None else max(0, place - window + 1)
            # it depends on distances alone, so that of an earlier query lies further right
            left = self._longest - place
            yield Block(
                query,
                size,
                key,
                place + size,
                whole[:size, left + key : left + place + size],
            )

    def _mask(self, like: Tensor, window: int | None) -> Tensor:
        """``[rows, longest + rows]``: of queries whose first has ``longest`` keys before it."""
        if window not in self._made:
            rows = min(QUERIES, self._longest)
            query = torch.arange(rows, device=like.device)[:, None] + self._longest
            distance = query - torch.arange(self._longest + rows, device=like.device)
            hidden = (
                distance < 0 if window is None else (distance < 0) | (distance >= window)
            )
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
        masks: the row's, with its spans, whose sizes add up to T.
        scaling: of the scores; None is D to the power -1/2.
        sliding_window: the tokens that each token sees, itself included.
        extras: further arguments of a model family; a value that changes the result is refused.

    Returns:
        ``[1, T, H, D]`` and None, as in transformers' interface.

    Raises:
        ConfigError: the family caps its scores or has attention sinks, which are not supported
            here.
    """
    refuse_extras(SEGMENTS, extras)
    outputs: list[Tensor] = []
    for span, q, k, v in _paths(masks.spans, query, key, value):
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
    # in one layout whatever the number of spans, since compiled layers have a graph for each
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _paths(
    spans: Sequence[Span], query: Tensor, key: Tensor, value: Tensor
) -> Iterator[tuple[Span, Tensor, Tensor, Tensor]]:
    """Each span with its queries, and the keys and values of its path."""
    seen: list[tuple[Tensor, Tensor]] = []
    sizes = [span.size for span in spans]
    parts = zip(*(torch.split(one, sizes, 2) for one in (query, key, value)), strict=True)
    for span, (q, k, v) in zip(spans, parts, strict=True):
        if span.parent != ROOT:
            earlier_k, earlier_v = seen[span.parent]
            k = torch.cat([earlier_k, k], dim=2)
            v = torch.cat([earlier_v, v], dim=2)
        seen.append((k, v))
        yield span, q, k, v


def fixed_segments(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    masks: Masks,
    scaling: float,
    sliding_window: int | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """``segment_attention`` in fixed shapes (``fixed_shapes.attend``); its backward is ordinary."""
    refuse_extras(FIXED, extras)
    assert sliding_window is None, "no family that is computed so has one"

    def ordinary(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return segment_attention(
            module, query, key, value, None, masks=masks, scaling=scaling
        )[0]

    fixed = partial(_attend_spans, masks.spans, scaling)
    found: Tensor = OrdinaryBackward.apply(fixed, ordinary, query, key, value)  # type: ignore[no-untyped-call]
    return found, None


def _attend_spans(
    spans: Sequence[Span], scaling: float, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    outputs: list[Tensor] = []
    for span, q, k, v in _paths(spans, query, key, value):
        place = span.first
        for queries in torch.split(q, QUERIES, 2):
            stop = place + queries.shape[2]
            keys, values = (whole_blocks(one[:, :, :stop]) for one in (k, v))
            positions = torch.arange(place, stop, device=q.device)[:, None]
            later = torch.arange(keys.shape[2], device=q.device) > positions
            mask = additive_mask(later[None, None], q.dtype)
            outputs.append(attend(queries, keys, values, mask, scaling))
            place = stop
    return torch.cat(outputs, 1)


def reference_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    masks: Masks,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """See ``segment_attention``.

    Args:
        softcap: the bound of a family that caps its scores: c · tanh(score / c).
        s_aux: ``[H]`` scores of sinks, which take a share of each token's attention.
    """
    outputs: list[Tensor] = []
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    for span, q, k, v in _paths(masks.spans, query, key, value):
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
        scores = q @ k.transpose(2, 3) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = span.first + torch.arange(span.size)[:, None] - torch.arange(k.shape[2])
        hidden = distance < 0
        if sliding_window is not None:
            hidden |= distance >= sliding_window
        scores = scores.masked_fill(hidden, -torch.inf)
        if s_aux is not None:
            scores = torch.cat(
                [scores, s_aux.view(1, -1, 1, 1).expand(1, -1, span.size, 1)], 3
            )
        outputs.append(scores.softmax(-1)[..., : k.shape[2]] @ v)
    return torch.cat(outputs, 2).transpose(1, 2), None


def refuse_extras(attention: str, extras: Mapping[str, Any], *passed: str) -> None:
    """Refuses arguments of a family's attention that change its result and that a function lacks.

    Args:
        attention: the function's name.
        extras: what the family gives beside the usual arguments.
        passed: those that the function takes.

    Raises:
        ConfigError: the family caps its scores (``softcap``) or has attention sinks (``s_aux``).
    """
    for name in ("softcap", "s_aux"):
        if name not in passed and extras.get(name) is not None:
            raise ConfigError(
                f"ModelConfig.attention={attention!r} lacks {name!r}, which this family's "
                f"attention uses; set flash_attention_3{' or flex' if name == 'softcap' else ''} "
                "on a GPU, or choose another family"
            )


AttentionInterface.register(SEGMENTS, segment_attention)
AttentionInterface.register(FIXED, fixed_segments)
AttentionInterface.register(REFERENCE, reference_attention)
