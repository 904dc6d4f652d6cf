"""RMSNorm patch: replaces a model's own RMSNorm by a faster one, on a CPU.

``open_pretrained`` applies it for a CPU alone (its ``device``); a GPU keeps the model's own norm.

Legend: D width, the last axis of every tensor here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call


class RMSNorm(nn.Module):
    """``weight · x / sqrt(mean(x²) + eps)`` (arXiv:1910.07467, eq. 4), in at least float32.

    Transformers writes it as a chain of operations, whose results autograd stores and reads again.
    This module stores its input and one number a row, and defines its own backward pass.

    Args:
        weight: ``[D]``.
        eps: added to the mean square.
    """

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., D]``, of the dtype that ``weight`` and ``hidden`` promote to."""
        normed: Tensor = _Normalize.apply(hidden, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = length.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(hidden, weight, inverse)
        normed: Tensor = (wide * inverse).to(hidden.dtype) * weight
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, weight, inverse = ctx.saved_tensors
        width = hidden.shape[-1]
        grad = grad.to(inverse.dtype).contiguous()
        scale = weight.to(inverse.dtype)
        normed = hidden * inverse
        by_normed = (grad * normed).view(-1, width)
        to_weight = by_normed.sum(0)
        along = torch.mv(by_normed, scale).div_(width).view_as(inverse)
        to_hidden = (grad * scale).addcmul_(normed, along, value=-1).mul_(inverse)
        return to_hidden.to(hidden.dtype), to_weight.to(weight.dtype), None


@torch.no_grad()
def patch_rmsnorm(model: nn.Module) -> None:
    """Replaces a model's norms by ``RMSNorm`` if it gives the same numbers; parameters keep their
    names.

    A norm is found by its ``variance_epsilon`` and compared on random numbers, because families
    differ in how they offset or scale the weight.

    Args:
        model: not yet sharded, for a CPU; it may have no weights yet.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = getattr(child, "weight", None)
            eps = getattr(child, "variance_epsilon", None)
            if not isinstance(weight, nn.Parameter) or not isinstance(eps, float):
                continue
            generator = torch.Generator().manual_seed(0)
            probe, drawn = (
                torch.randn(shape, generator=generator, dtype=weight.dtype, device="cpu")
                for shape in ((4, weight.shape[-1]), weight.shape)
            )
            own = functional_call(child, {"weight": drawn}, (probe,))
            other = RMSNorm(nn.Parameter(drawn), eps)(probe)
            if torch.allclose(own, other, rtol=1e-5, atol=1e-6):
                setattr(parent, name, RMSNorm(weight, eps))
