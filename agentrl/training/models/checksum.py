"""Checksum: of a tensor or of its shards, in torch; numpy's is ``agentrl.engines.checksum``."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def tensor_checksum(tensor: Tensor, *, start: int = 0, row: int | None = None) -> Tensor:
    """Σ bits_i · (2i + 1) modulo 2⁶⁴ over flat indices i, as an int64 scalar tensor.

    It is additive over shards that start at their own index (docs/controller.md), so that trainer
    and engine compare weights without gathering them.

    Args:
        tensor: floating point, any shape.
        start: flat index of its first element in the whole tensor.
        row: how far the whole tensor's rows are apart; None where the rows here are whole.
    """
    bits = tensor.contiguous().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    )
    flat = bits.reshape(-1).to(torch.int64)
    if tensor.itemsize < 8:
        flat = flat & (2 ** (8 * tensor.itemsize) - 1)  # the bits, not a signed number
    index = torch.arange(start, start + flat.numel(), device=flat.device)
    width = math.prod(tensor.shape[1:])
    if row is not None and row != width and flat.numel():
        rows = torch.arange(tensor.shape[0], device=flat.device)[:, None] * row
        index = (start + rows + torch.arange(width, device=flat.device)).reshape(-1)
    return (flat * (2 * index + 1)).sum()
