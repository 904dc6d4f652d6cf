"""Value losses: of a critic, for each token, unreduced.

Axis: N trained tokens of a micro-batch.
"""

from __future__ import annotations

import torch

from agentrl.algorithms.functions.token_stats import stats_of
from agentrl.algorithms.records import TokenLoss, ValueInputs


def clipped_value_loss(inputs: ValueInputs, *, clip: float | None) -> TokenLoss:
    """max((V - R)², (V_clip - R)²) / 2, where V_clip is at most ``clip`` away from the value before
    the batch's first update.

    Args:
        inputs: ``[N]``.
        clip: None takes (V - R)² / 2.

    Returns:
        ``[N]`` losses. The statistics are ``value``, ``return``, ``clip_frac`` (shares of tokens
        whose gradient the bound removed), and what the explained variance before the update comes
        from: ``return_sq``, ``error`` and ``error_sq``.
    """
    values, old, returns = inputs.values, inputs.old_values, inputs.returns
    loss = (values - returns).square()
    bites = torch.zeros_like(values, dtype=torch.bool)
    if clip is not None:
        bounded = old + (values - old).clamp(-clip, clip)
        clipped = (bounded - returns).square()
        bites = clipped > loss
        loss = torch.maximum(loss, clipped)
    error = returns - old
    stats = {
        "value": values,
        "return": returns,
        "return_sq": returns.square(),
        "error": error,
        "error_sq": error.square(),
        "clip_frac": bites,
    }
    return TokenLoss(loss / 2, stats_of(stats))
