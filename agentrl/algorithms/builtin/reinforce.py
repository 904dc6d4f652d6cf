"""REINFORCE++ and ReMax: returns of tokens (arXiv:2501.03262, arXiv:2310.10505)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.functions.credit import greedy_baseline_credit, reward_credit
from agentrl.algorithms.functions.returns import return_advantages
from agentrl.algorithms.settings import (
    KLInReward,
    ReinforcePlusPlusSettings,
    ReMaxSettings,
)


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
        _with_returns(spec, settings, discount=settings.discount), normalize_advantages=True
    )


def make_remax(settings: ReMaxSettings) -> AlgorithmSpec:
    """ReMax with ``settings``; the KL to the reference is taken off each token's reward."""
    spec = policy_gradient(
        "remax",
        settings,
        credit=greedy_baseline_credit,
        loss=clipped_loss(settings),
        kl_in_loss=False,
    )
    return _with_returns(spec, settings, discount=1.0)


def _with_returns(spec: AlgorithmSpec, settings: KLInReward, *, discount: float) -> AlgorithmSpec:
    """The advantage of a token is its return, with the KL off its reward."""
    return replace(
        spec,
        advantages=partial(
            return_advantages,
            discount=discount,
            kl_coef=settings.kl_coef,
        ),
        partition="trajectory",  # a return goes on into the trajectory's next sample
    )
