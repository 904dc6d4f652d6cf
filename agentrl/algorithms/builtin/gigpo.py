"""GiGPO: credit of trajectories, and of steps among those from the same state
(arXiv:2505.10978)."""

from __future__ import annotations

from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.functions.credit import group_in_group_credit
from agentrl.algorithms.settings import GiGPOSettings


def make_gigpo(settings: GiGPOSettings) -> AlgorithmSpec:
    """GiGPO with ``settings``. States are those of ``Turn.state_key``."""
    credit = partial(
        group_in_group_credit,
        step_weight=settings.step_weight,
        discount=settings.discount,
        scale_rewards=settings.scale_rewards,
        eps=settings.std_eps,
    )
    return policy_gradient("gigpo", settings, credit=credit, loss=clipped_loss(settings))
