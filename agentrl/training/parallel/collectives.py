"""Differentiable collectives of tensor and sequence parallelism.

Every rank of a group computes the same loss from the same numbers, so that a gradient which all of
them hold is the loss's own, and not to be summed (arXiv:1909.08053, sec. 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sum_gradient(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """``tensor``, whose gradient is the sum of the ranks' own; for what all ranks hold and each
    uses for a part."""
    found: Tensor = _SumGradient.apply(tensor, group)  # type: ignore[no-untyped-call]
    return found


def sum_values(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the ranks' tensors, whose gradient each of them gets."""
    found: Tensor = _SumValues.apply(tensor, group)  # type: ignore[no-untyped-call]
    return found


def gather_parts(part: Tensor, counts: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """The ranks' parts behind each other; a rank's part gets its slice of the gradient.

    Args:
        part: ``[max(n, 1), ...]``, of which the first ``n = counts[rank]`` rows count.
        counts: rows of each rank, not all 0.
        group: the ranks.

    Returns:
        ``[sum(counts), ...]``.
    """
    found: Tensor = _GatherParts.apply(part, tuple(counts), group)  # type: ignore[no-untyped-call]
    return found


def exchange(tensor: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """An all-to-all: each rank gives every rank a part along one dimension, and joins what it gets
    along another, in the order of ranks.

    Args:
        tensor: of equal shape on every rank.
        split: the dimension that is divided; the group's size divides it.
        join: the dimension that grows.
        group: the ranks.
    """
    found: Tensor = _Exchange.apply(tensor, split, join, group)  # type: ignore[no-untyped-call]
    return found


def own_rows(rows: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, list[int]]:
    """This rank's slice of rows that all ranks hold, whose gradient is then the whole's, and the
    rows of each rank; ``gather_parts`` joins what becomes of them."""
    parts, rank = dist.get_world_size(group), dist.get_rank(group)
    size = -(-rows.shape[0] // parts)
    counts = [min(size, max(0, rows.shape[0] - one * size)) for one in range(parts)]
    return sum_gradient(rows, group).narrow(0, sum(counts[:rank]), counts[rank]), counts


def exchange_rows(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """An all-to-all of rows: each rank gets a part of every rank's, in the order of ranks.

    Args:
        rows: ``[sum(sent), D]``, those for each rank behind those for the one before.
        sent: rows for each rank.
        received: rows from each rank.
        group: the ranks.

    Returns:
        ``[sum(received), D]``.
    """
    found: Tensor = _ExchangeRows.apply(rows, tuple(sent), tuple(received), group)  # type: ignore[no-untyped-call]
    return found


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, ctx.group), None


class _SumValues(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(tensor, group)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # The gradient is the loss's own on every rank; a sum would count it once a rank.
        return gradient, None


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, counts: tuple[int, ...], group: dist.ProcessGroup
    ) -> Tensor:
        rank, most = dist.get_rank(group), max(counts)
        ctx.first, ctx.count, ctx.rows = sum(counts[:rank]), counts[rank], part.shape[0]
        # gloo gathers tensors of one shape alone
        sent = part.new_zeros((most, *part.shape[1:]))
        sent[: ctx.count] = part[: ctx.count]
        parts = [torch.empty_like(sent) for _ in counts]
        dist.all_gather(parts, sent, group=group)
        return torch.cat([own[:count] for own, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # Nothing is sent: every rank holds the gradient of the whole, and takes its slice of it.
        own = gradient.new_zeros((ctx.rows, *gradient.shape[1:]))
        own[: ctx.count] = gradient[ctx.first : ctx.first + ctx.count]
        return own, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, split: int, join: int, group: dist.ProcessGroup
    ) -> Tensor:
        ctx.split, ctx.join, ctx.group = split, join, group
        return _exchange(tensor, split, join, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient, ctx.join, ctx.split, ctx.group), None, None, None


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: tuple[int, ...],
        received: tuple[int, ...],
        group: dist.ProcessGroup,
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange_rows(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange_rows(gradient, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange_rows(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    found = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(
        found, rows.contiguous(), list(received), list(sent), group=group
    )
    return found


def _sum(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    # ``all_reduce`` writes into its tensor, which autograd may give to other nodes too. It wants
    # one without strides of 0, which the gradient of a sum has.
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _exchange(tensor: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    # ``all_to_all_single`` divides a contiguous tensor along its first dimension alone.
    sent = torch.stack(tensor.chunk(dist.get_world_size(group), split))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), join)
