"""SAPO: a smooth gate of the ratio in the place of bounds (arXiv:2511.20347)."""

from __future__ import annotations

from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import group_credit, policy_gradient
from agentrl.algorithms.functions.losses import gated_policy_loss
from agentrl.algorithms.settings import SAPOSettings


def make_sapo(settings: SAPOSettings) -> AlgorithmSpec:
    """SAPO with ``settings``."""
    loss = partial(
        gated_policy_loss,
        tau_positive=settings.tau_positive,
        tau_negative=settings.tau_negative,
    )
    return policy_gradient("sapo", settings, credit=group_credit(settings), loss=loss)
