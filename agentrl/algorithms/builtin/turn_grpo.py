"""Turn-level GRPO: each turn's return against those of the same turn in its group."""

from __future__ import annotations

from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.functions.credit import turn_level_credit
from agentrl.algorithms.settings import TurnGRPOSettings


def make_turn_grpo(settings: TurnGRPOSettings) -> AlgorithmSpec:
    """Turn-level GRPO with ``settings``."""
    credit = partial(
        turn_level_credit,
        discount=settings.discount,
        scale_rewards=settings.scale_rewards,
        eps=settings.std_eps,
    )
    return policy_gradient("turn_grpo", settings, credit=credit, loss=clipped_loss(settings))
