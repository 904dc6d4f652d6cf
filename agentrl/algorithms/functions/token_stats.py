"""Token statistics: a sum over the tokens of a micro-batch, to be merged over all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentrl.algorithms.records import TokenStat


def stats_of(values: Mapping[str, Tensor]) -> dict[str, TokenStat]:
    """``stat_of`` each, by name."""
    return {name: stat_of(one) for name, one in values.items()}


def stat_of(values: Tensor) -> TokenStat:
    """The sum of ``values`` in float64, detached, and their number."""
    return TokenStat(values.detach().sum(dtype=torch.float64), values.numel())
