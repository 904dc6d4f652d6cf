"""Token statistics: a sum over the tokens of a micro-batch, to be merged over all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.algorithms.records import TokenStat


def stat_of(values: Tensor) -> TokenStat:
    """The sum of ``values`` in float64, detached, and their number."""
    return TokenStat(values.detach().sum(dtype=torch.float64), values.numel())
