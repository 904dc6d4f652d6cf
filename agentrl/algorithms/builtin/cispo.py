"""CISPO: a bounded ratio weighs each token, and none loses its gradient (arXiv:2506.13585)."""

from __future__ import annotations

from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import group_credit, policy_gradient
from agentrl.algorithms.functions.losses import weighted_policy_loss
from agentrl.algorithms.settings import CISPOSettings


def make_cispo(settings: CISPOSettings) -> AlgorithmSpec:
    """CISPO with ``settings``."""
    loss = partial(
        weighted_policy_loss, ratio_floor=settings.ratio_floor, ratio_cap=settings.ratio_cap
    )
    return policy_gradient("cispo", settings, credit=group_credit(settings), loss=loss)
