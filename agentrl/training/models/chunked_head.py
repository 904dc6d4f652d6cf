"""Chunked head: an output layer on chunks of rows, whose gradient is summed over them in place.

- Autograd sums the chunks' gradients in the layer's own dtype. In bfloat16 each sum is rounded, so
  that many chunks give another gradient than one. Here the sum is at least float32.
- Autograd also holds three gradients as large as the layer at once: the sum, a chunk's own, and the
  next sum. Here each chunk adds its product to the one sum.

Shapes: R rows of a chunk, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.training.parallel.shards import local


class ChunkedHead:
    """A linear layer that is called once a chunk; one object serves one forward pass.

    Args:
        head: the layer, gathered and in the forward's dtype.
        dtype: of the products; None is the layer's own. The weights stay those rounded ones that
            are published.
        product: of ``[R, D]`` rows, weight and bias.
    """

    def __init__(
        self,
        head: nn.Linear,
        dtype: torch.dtype | None = None,
        product: Callable[..., Tensor] = linear,
    ) -> None:
        weight = local(head.weight)
        self._dtype = weight.dtype if dtype is None else dtype
        self._weight = weight.detach().to(self._dtype)
        self._product = product
        self._weight_sum = _GradientSum()
        self._weight_end: Tensor = _End.apply(weight, self._weight_sum)  # type: ignore[no-untyped-call]
        self._bias: Tensor | None = None
        self._bias_sum = _GradientSum()
        self._bias_end: Tensor | None = None
        if head.bias is not None:
            bias = local(head.bias)
            self._bias = bias.detach().to(self._dtype)
            self._bias_end = _End.apply(bias, self._bias_sum)  # type: ignore[no-untyped-call]

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[R, V]`` logits of ``[R, D]`` hidden states."""
        logits: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            hidden.to(self._dtype),
            self._weight,
            self._bias,
            self._weight_end,
            self._bias_end,
            (self._weight_sum, self._bias_sum),
            self._product,
        )
        return logits


class _GradientSum:
    """The gradient of a parameter over the chunks of a backward pass; None before the first."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None

    def add_product(self, one: Tensor, other: Tensor) -> None:
        """Adds ``one · other``, a matrix product that is not rounded to its factors' dtype."""
        wide = torch.promote_types(one.dtype, torch.float32)
        if self._sum is None:
            self._sum = one.new_zeros((one.shape[0], other.shape[1]), dtype=wide)
        if one.dtype == wide:
            self._sum.addmm_(one, other)
        # Only products on a GPU have ``out_dtype``; a CPU widens both factors first.
        elif one.is_cuda:
            torch.addmm(self._sum, one, other, out_dtype=wide, out=self._sum)
        else:
            self._sum.addmm_(one.to(wide), other.to(wide))

    def add_rows(self, rows: Tensor) -> None:
        """Adds the sum of ``[R, V]`` over R."""
        found = rows.to(torch.promote_types(rows.dtype, torch.float32)).sum(0)
        self._sum = found if self._sum is None else self._sum.add_(found)

    def take(self) -> Tensor | None:
        """The sum, which starts over at 0."""
        found, self._sum = self._sum, None
        return found


class _End(torch.autograd.Function):
    """A number that each chunk takes, so that its backward pass comes behind all of theirs. It
    gives the sum to the parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: _GradientSum) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.dtype, ctx.gradient = parameter.dtype, gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, None]:
        found = ctx.gradient.take()
        return None if found is None else found.to(ctx.dtype), None


class _Linear(torch.autograd.Function):
    """``hidden · weightᵀ + bias``, whose gradients for weight and bias go to their sums."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_end: Tensor,
        bias_end: Tensor | None,
        sums: tuple[_GradientSum, _GradientSum],
        product: Callable[..., Tensor],
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.sums = sums
        return product(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, *tuple[None, ...]]:
        hidden, weight = ctx.saved_tensors
        to_hidden, _, _, to_weight, to_bias, *_ = ctx.needs_input_grad
        of_weight, of_bias = ctx.sums
        if to_weight:
            of_weight.add_product(gradient.T, hidden)
        if to_bias:
            of_bias.add_rows(gradient)
        return gradient @ weight if to_hidden else None, *(None,) * 6
