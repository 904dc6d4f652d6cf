"""Gradients: the norm of a gradient that is sharded over ranks, and clipping by it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> float:
    """Scales all gradients so that their total norm is at most ``limit``.

    Norms are computed mesh by mesh and then combined, because one sum cannot mix meshes.

    Args:
        parameters: sharded or not; those without a gradient are skipped.
        limit: above 0; None only measures.

    Returns:
        The norm before clipping; if it is not finite, nothing was scaled.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    by_mesh: defaultdict[object, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        by_mesh[getattr(gradient, "device_mesh", None)].append(gradient)
    squares = 0.0
    for own in by_mesh.values():
        norm = torch.nn.utils.get_total_norm(own)
        squares += float(norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    total = math.sqrt(squares)
    if limit is not None and math.isfinite(total) and total > limit:
        for gradient in gradients:
            gradient.mul_(limit / total)
    return total
