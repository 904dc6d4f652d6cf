"""Corrections: factors of the loss for a behaviour policy that differs from the one trained.

Axis: N trained tokens of a micro-batch. Factors are detached. A token that no engine sampled has 1.
"""

from __future__ import annotations

import torch

from agentrl.algorithms.records import Correction, PolicyInputs


def truncated_importance(inputs: PolicyInputs, *, cap: float) -> Correction:
    """Factors min(π_old / π_rollout, cap).

    Truncated importance sampling corrects for a sampler whose probabilities differ from the
    trainer's, at bounded variance.
    """
    old = inputs.old_logprobs.detach()
    factor = torch.exp(old - inputs.rollout_logprobs).clamp(max=cap)
    return Correction(torch.where(inputs.sampled, factor, torch.ones_like(factor)))
