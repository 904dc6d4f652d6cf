"""Sequences: sums and means over the trained tokens of each sequence, given back to each token.

The one way in which a loss or a correction looks beyond a token. What a sequence is, the rows say:
a sample, a turn or a trajectory (``PolicyInputs``).
"""

from __future__ import annotations

import torch
from torch import Tensor


def sum_over(values: Tensor, rows: Tensor) -> Tensor:
    """``[N]`` sums of ``values`` over the tokens of equal ``rows``, with gradient.

    Args:
        values: ``[N]``.
        rows: ``[N]`` int64, in any order.
    """
    places, number = _places(rows)
    return values.new_zeros(number).index_add(0, places, values)[places]


def mean_over(values: Tensor, rows: Tensor) -> Tensor:
    """``[N]`` means of ``values`` over the tokens of equal ``rows``, with gradient."""
    return sum_over(values, rows) / sum_over(torch.ones_like(values), rows)


def max_over(values: Tensor, rows: Tensor) -> Tensor:
    """``[N]`` largest of ``values`` among the tokens of equal ``rows``, without gradient."""
    places, number = _places(rows)
    found = values.new_full((number,), -torch.inf)
    return found.scatter_reduce(0, places, values.detach(), "amax")[places]


def _places(rows: Tensor) -> tuple[Tensor, int]:
    """The place of each token's sequence, in the order of ``rows``, and a bound on their number; a
    GPU would have to be asked for the number itself."""
    order = rows.argsort(stable=True)
    ordered = rows[order]
    is_first = torch.zeros_like(rows)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(rows).scatter_(0, order, is_first.cumsum(0)), rows.numel()
