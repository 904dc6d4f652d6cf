"""The norm of a gradient that lies on several ranks, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

__all__ = ["clip_gradients"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> float:
    """Scale all gradients so that the norm of the whole is at most ``limit``.

    Norms are taken mesh by mesh, since one sum can't mix meshes, and then put together.

    Args:
        parameters: sharded or not; those without a gradient are passed over.
        limit: above 0; None only measures.

    Returns:
        The norm before clipping; where it is not finite nothing was scaled.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    by_mesh: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        by_mesh.setdefault(
            gradient.device_mesh if isinstance(gradient, DTensor) else None, []
        ).append(gradient)
    squares = 0.0
    for own in by_mesh.values():
        norm = torch.nn.utils.get_total_norm(own)
        squares += float(norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    total = math.sqrt(squares)
    if limit is not None and math.isfinite(total) and total > limit:
        for gradient in gradients:
            gradient.mul_(limit / total)
    return total
