"""Chunked head: an output layer on chunks of rows, whose gradient is summed over them in float32.

Autograd sums the chunks' gradients in the layer's own dtype. In bfloat16 each sum is rounded, so
that many chunks give another gradient than one.

Shapes: R rows of a chunk, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class ChunkedHead:
    """A linear layer that is called once a chunk; one object serves one forward pass.

    Args:
        head: the layer, gathered and in the forward's dtype.
    """

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._weight_sum = _Float32Gradient.apply(head.weight)  # type: ignore[no-untyped-call]
        self._bias_sum = None
        if head.bias is not None:
            self._bias_sum = _Float32Gradient.apply(head.bias)  # type: ignore[no-untyped-call]

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[R, V]`` logits of ``[R, D]`` hidden states."""
        bias = None if self._head.bias is None else self._head.bias.detach()
        logits: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            hidden, self._head.weight.detach(), bias, self._weight_sum, self._bias_sum
        )
        return logits


class _Float32Gradient(torch.autograd.Function):
    """A float32 stand-in of a parameter, without storage, whose gradient becomes the parameter's at
    the end.
    """

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> Tensor:
        ctx.dtype = parameter.dtype
        return parameter.new_zeros((), dtype=torch.float32).expand(parameter.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to(ctx.dtype)


class _Linear(torch.autograd.Function):
    """``hidden · weightᵀ + bias``, with float32 gradients for the stand-ins."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_sum: Tensor,
        bias_sum: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return linear(hidden, weight, bias)

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, None, None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        to_hidden, _, _, to_weight, to_bias = ctx.needs_input_grad
        return (
            gradient @ weight if to_hidden else None,
            None,
            None,
            _float32_product(gradient.T, hidden) if to_weight else None,
            gradient.float().sum(0) if to_bias else None,
        )


def _float32_product(one: Tensor, other: Tensor) -> Tensor:
    """A matrix product that is not rounded to its factors' dtype."""
    if one.is_cuda:
        return torch.mm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()
