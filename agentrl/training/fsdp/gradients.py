"""Gradients: the norm of a gradient that is sharded over ranks, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from agentrl.training.fsdp.sharding import is_first_copy
from agentrl.training.parallel.shards import local


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> float:
    """Scales all gradients so that their total norm is at most ``limit``.

    Each rank adds up the squares of its shards, one that several ranks hold on the first of them
    alone. One sum over all ranks follows, so that they agree on the norm whatever the layout.

    Args:
        parameters: sharded or not; those without a gradient are skipped.
        limit: above 0; None only measures.

    Returns:
        The norm before clipping; if it is not finite, nothing was scaled.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    is_sharded = any(isinstance(gradient, DTensor) for gradient in gradients)
    own = [local(gradient) for gradient in gradients if is_first_copy(gradient)]
    # The square of a norm above 1.8e19 is infinite in float32.
    squares = torch.nn.utils.get_total_norm(own).double() ** 2
    if is_sharded:
        # A rank may be the first copy of nothing, and torch's norm of no tensors is on the CPU.
        squares = squares.to(gradients[0].device)
        dist.all_reduce(squares)
    total = math.sqrt(float(squares))
    if limit is not None and math.isfinite(total) and total > limit:
        for gradient in gradients:
            gradient.mul_(limit / total)
    return total
