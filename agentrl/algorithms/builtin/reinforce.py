"""REINFORCE++: returns of tokens, normalised over the whole batch (arXiv:2501.03262)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.functions.credit import reward_credit
from agentrl.algorithms.functions.returns import return_advantages
from agentrl.algorithms.settings import ReinforcePlusPlusSettings


def make_reinforce_plus_plus(settings: ReinforcePlusPlusSettings) -> AlgorithmSpec:
    """REINFORCE++ with ``settings``; the KL to the reference is taken off each token's reward."""
    spec = policy_gradient(
        "reinforce_plus_plus",
        settings,
        credit=partial(reward_credit, baseline=settings.baseline),
        loss=clipped_loss(settings),
        kl_in_loss=False,
    )
    return replace(
        spec,
        advantages=partial(
            return_advantages,
            discount=settings.discount,
            kl_coef=settings.kl_coef,
            kl_estimator=settings.kl_estimator,
            kl_cap=settings.kl_cap,
        ),
        normalize_advantages=True,
        partition="trajectory",  # a return goes on into the trajectory's next sample
    )
