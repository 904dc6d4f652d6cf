"""Block mask: the prefix tree of a packed row as a mask of flex attention.

- A token sees the tokens of its own span and of those above it that come no later than itself.
- The spans of a tree are numbered in its order, so that those below one are an interval. One
  comparison then tells whether a span lies above another.
- Which blocks of the mask are empty or full follows from the spans, on the host. Neither a mask
  quadratic in tokens nor a wait for the device is needed.

Axes: T packed tokens, B = ⌈T / ``BLOCK``⌉ blocks, P pieces: the parts of spans within blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.data.transfer import to_device
from agentrl.types.arrays import I32, Bools

BLOCK = 128
"""Tokens of a block, as flex attention's kernels expect."""


class BlockMasks:
    """The block masks of a row, one for each sliding window that its layers have.

    Args:
        spans: the row's spans in order.
        device: of the masks.
    """

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        self._spans = spans
        self._device = device
        self._made: dict[int | None, BlockMask] = {}

    def of(self, window: int | None) -> BlockMask:
        """The mask of a layer whose tokens see ``window`` tokens, themselves included; None for
        all."""
        if window not in self._made:
            self._made[window] = block_mask(self._spans, window, self._device)
        return self._made[window]


def block_mask(
    spans: Sequence[Span], window: int | None, device: torch.device
) -> BlockMask:
    """The mask of a packed row.

    Args:
        spans: the row's spans in order, each after its parent.
        window: tokens that each token sees, itself included; None for all.
        device: of the mask.
    """
    enter, leave = _intervals(spans)
    sizes = np.array([span.size for span in spans])
    total = int(sizes.sum())
    place = np.concatenate([np.arange(one.first, one.first + one.size) for one in spans])
    some, full = block_kinds(spans, window)
    arrays: dict[str, npt.NDArray[Any]] = {
        "enter": np.repeat(enter, sizes),
        "leave": np.repeat(leave, sizes),
        "place": place.astype(np.int32),
    }
    for name, kind in (("", some & ~full), ("full_", full)):
        arrays[f"{name}kv_num_blocks"], arrays[f"{name}kv_indices"] = _ordered(kind)
        arrays[f"{name}q_num_blocks"], arrays[f"{name}q_indices"] = _ordered(kind.T)
    there: dict[str, Any] = {**to_device(arrays, device)}
    enters: Tensor = there.pop("enter")
    leaves: Tensor = there.pop("leave")
    places: Tensor = there.pop("place")

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        above = (enters[key] <= enters[query]) & (enters[query] < leaves[key])
        distance = places[query] - places[key]
        seen = above & (distance >= 0)
        return seen if window is None else seen & (distance < window)

    return BlockMask(
        seq_lengths=(total, total), BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=visible, **there
    )


def block_kinds(spans: Sequence[Span], window: int | None) -> tuple[Bools, Bools]:
    """``[B, B]`` each: the blocks (of queries, of keys) where some key is visible, and those where
    each is to each query.

    A block may be called neither empty nor full without being so; then the mask decides.
    """
    enter, leave = _intervals(spans)
    ends = np.cumsum([span.size for span in spans])
    # A piece begins at each cut.
    cuts = np.union1d(np.arange(0, ends[-1], BLOCK), ends)[:-1]
    stops = np.append(cuts[1:], ends[-1])
    owner = np.searchsorted(ends, cuts, side="right")
    shift = np.array([span.first for span in spans]) - (
        ends - [span.size for span in spans]
    )
    low, high = cuts + shift[owner], stops - 1 + shift[owner]
    above = (enter[owner][None] <= enter[owner][:, None]) & (
        enter[owner][:, None] < leave[owner][None]
    )
    nearest, farthest = low[:, None] - high[None], high[:, None] - low[None]
    some = above & (farthest >= 0)
    full = above & (nearest >= 0)
    if window is not None:
        some &= nearest < window
        full &= farthest < window
    firsts = np.flatnonzero(cuts % BLOCK == 0)
    some = np.logical_or.reduceat(np.logical_or.reduceat(some, firsts, 0), firsts, 1)
    full = np.logical_and.reduceat(np.logical_and.reduceat(full, firsts, 0), firsts, 1)
    # What is beyond the row is not visible.
    if ends[-1] % BLOCK:
        full[-1] = full[:, -1] = False
    return some, full


def _intervals(spans: Sequence[Span]) -> tuple[I32, I32]:
    """A number of each span, and the one behind those of the spans below it."""
    below = np.ones(len(spans), dtype=np.int32)
    # From the last one on, since each span comes after its parent.
    for index in range(len(spans) - 1, -1, -1):
        if spans[index].parent != ROOT:
            below[spans[index].parent] += below[index]
    enter = np.zeros(len(spans), dtype=np.int32)
    # Each entry is the next number below a span.
    free = np.zeros(len(spans), dtype=np.int32)
    at_root = 0
    for index, span in enumerate(spans):
        if span.parent == ROOT:
            enter[index] = at_root
            at_root += below[index]
        else:
            enter[index] = free[span.parent]
            free[span.parent] += below[index]
        free[index] = enter[index] + 1
    return enter, enter + below


def _ordered(dense: Bools) -> tuple[I32, I32]:
    """``[1, 1, B]`` true entries of each row, and ``[1, 1, B, B]`` their places before the
    others'."""
    counts = dense.sum(1, dtype=np.int32)
    order = np.argsort(~dense, axis=1, kind="stable").astype(np.int32)
    return counts[None, None], order[None, None]
