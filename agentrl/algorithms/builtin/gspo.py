"""GSPO: ratio and bounds of whole sequences (arXiv:2507.18071)."""

from __future__ import annotations

from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import group_credit, policy_gradient
from agentrl.algorithms.functions.losses import sequence_policy_loss
from agentrl.algorithms.settings import GSPOSettings


def make_gspo(settings: GSPOSettings) -> AlgorithmSpec:
    """GSPO with ``settings``; a sequence is a sample."""
    loss = partial(sequence_policy_loss, clip_low=settings.clip_low, clip_high=settings.clip_high)
    return policy_gradient("gspo", settings, credit=group_credit(settings), loss=loss)
