"""Pair losses: unreduced losses for each pair, without communication between ranks.

Axis: C pairs of a micro-batch.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.algorithms.algorithm_spec import PairInputs, PairLoss, TokenStat


def bradley_terry_loss(inputs: PairInputs, *, centring: float) -> PairLoss:
    """-log sigmoid(r_chosen - r_rejected - margin) (arXiv:1706.03741, sec. 2.2.3; arXiv:2203.02155,
    eq. 1).

    Args:
        inputs: ``[C]`` pairs; the margin is that of arXiv:2307.09288, eq. 2.
        centring: adds centring · (r_chosen + r_rejected)^2 (arXiv:2312.09244, sec. 2).

    Returns:
        ``[C]`` losses. The statistics are ``reward_model/accuracy`` (the share of pairs whose
        better trajectory has the higher score; a tie counts half), ``reward_model/margin``
        (r_chosen - r_rejected) and ``reward_model/score`` (the mean of both).
    """
    difference = inputs.chosen - inputs.rejected
    loss = -logsigmoid(difference - inputs.margin)
    total = inputs.chosen + inputs.rejected
    if centring > 0:
        loss = loss + centring * total.square()
    right = (difference.detach() > 0).double() + 0.5 * (difference.detach() == 0)
    stats = {
        "reward_model/accuracy": right,
        "reward_model/margin": difference,
        "reward_model/score": total / 2,
    }
    return PairLoss(loss, {name: _stat(values) for name, values in stats.items()})


def _stat(values: Tensor) -> TokenStat:
    return TokenStat(values.detach().double().sum(), values.numel())
