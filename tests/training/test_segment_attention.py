"""Attention of a packed row: equal to attention of each sample alone, in memory that grows with the
row's tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from agentrl.training.data.attention import (
    QUERIES,
    Masks,
    reference_attention,
    segment_attention,
)
from agentrl.training.data.prefix_tree import ROOT, Span

SPANS = (
    Span(ROOT, 0, 700),
    Span(0, 700, 600),
    Span(0, 700, 40),
    Span(1, 1300, 530),
    Span(ROOT, 0, 90),
)
PATHS = ((0, 1, 3), (0, 1), (0, 2), (4,))
HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def alone(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """``[H, n, D]`` of one sample, by the definition."""
    size = query.shape[1]
    key, value = (one.repeat_interleave(HEADS // KEY_HEADS, 0) for one in (key, value))
    distance = torch.arange(size)[:, None] - torch.arange(size)
    visible = (distance >= 0) & (distance < (window or size))
    scores = (query @ key.transpose(1, 2)) / WIDTH**0.5
    found: Tensor = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value
    return found


@pytest.mark.parametrize("attend", [segment_attention, reference_attention])
@pytest.mark.parametrize("window", [None, 300, 5])
def test_every_sample_has_its_own_attention_and_gradient(
    window: int | None, attend: Callable[..., Any]
) -> None:
    total = sum(span.size for span in SPANS)
    starts = [sum(span.size for span in SPANS[:index]) for index in range(len(SPANS))]
    torch.manual_seed(0)
    packed = [
        torch.randn(1, heads, total, WIDTH, dtype=torch.float64, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    queries, keys, values = packed
    found, _ = attend(
        nn.Identity(),
        queries,
        keys,
        values,
        None,
        masks=Masks(SPANS),
        sliding_window=window,
    )
    weights = torch.randn_like(found)
    gradients = torch.autograd.grad((found * weights).sum(), packed)

    expected = torch.zeros_like(found)
    seen: set[int] = set()
    for path in PATHS:
        places = torch.cat(
            [
                torch.arange(starts[index], starts[index] + SPANS[index].size)
                for index in path
            ]
        )
        query, key, value = (tensor[0][:, places] for tensor in packed)
        one = alone(query, key, value, window).transpose(0, 1)
        new = torch.tensor(
            [index not in seen for index in path for _ in range(SPANS[index].size)]
        )
        expected = expected.index_put((torch.tensor(0), places[new]), one[new])
        seen |= set(path)
    by_definition = torch.autograd.grad((expected * weights).sum(), packed)

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for own, other in zip(gradients, by_definition, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("window", [None, 100])
def test_the_masks_of_32768_tokens_take_little_memory(window: int | None) -> None:
    spans = [Span(ROOT, 0, 16_384), Span(0, 16_384, 12_288), Span(0, 16_384, 4_096)]
    masks = Masks(spans)
    like = torch.zeros(1)
    blocks = [block for span in spans for block in masks.blocks(like, span, window)]
    made = {
        block.mask.untyped_storage().data_ptr(): block.mask.untyped_storage().nbytes()
        for block in blocks
        if block.mask is not None
    }
    assert sum(made.values()) == 4 * QUERIES * (28_672 + QUERIES)  # 57 MiB; it was 1.3 GiB
    assert sum(block.size for block in blocks) == 32_768


@pytest.mark.parametrize(
    ("family", "own"),
    [
        (modeling_gemma2, {"softcap": 2.0}),
        (modeling_gpt_oss, {"s_aux": torch.tensor([-1.0, 0.0, 1.0, 2.0])}),
    ],
)
def test_the_reference_caps_scores_and_has_sinks_as_their_families_do(
    family: Any, own: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, 7, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    module: Any = SimpleNamespace(
        num_key_value_groups=HEADS // KEY_HEADS, training=False, sinks=own.get("s_aux")
    )
    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    expected, _ = family.eager_attention_forward(module, *tensors, mask, scaling=0.4, **own)
    masks = Masks([Span(ROOT, 0, 7)])
    found, _ = reference_attention(module, *tensors, None, masks=masks, scaling=0.4, **own)
    torch.testing.assert_close(found, expected)
