"""RLOO: a rollout against the mean of the others of its group (arXiv:2402.14740)."""

from __future__ import annotations

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.functions.credit import leave_one_out_credit
from agentrl.algorithms.settings import RLOOSettings


def make_rloo(settings: RLOOSettings) -> AlgorithmSpec:
    """RLOO with ``settings``; its loss is clipped, which an on-policy update does not meet."""
    return policy_gradient(
        "rloo", settings, credit=leave_one_out_credit, loss=clipped_loss(settings)
    )
