"""REINFORCE++, ReMax and distillation: each token is worth its own return or its teacher's word
(arXiv:2501.03262, arXiv:2310.10505, arXiv:2306.13649)."""

from __future__ import annotations

from dataclasses import replace

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import bound, policy_gradient
from agentrl.algorithms.builtin.supervised import keep_all, no_credit
from agentrl.algorithms.functions.credit import greedy_baseline_credit, reward_credit
from agentrl.algorithms.functions.losses import clipped_policy_loss
from agentrl.algorithms.functions.returns import return_advantages, reverse_kl_advantages
from agentrl.algorithms.settings.policy_gradient import (
    DistillationSettings,
    KLInReward,
    ReinforcePlusPlusSettings,
    ReMaxSettings,
)


def make_reinforce_plus_plus(
    name: str, settings: ReinforcePlusPlusSettings
) -> AlgorithmSpec:
    """REINFORCE++ with ``settings``; the KL to the reference is taken off each token's reward."""
    spec = policy_gradient(
        name,
        settings,
        credit=bound(reward_credit, settings),
        loss=bound(clipped_policy_loss, settings),
        kl_in_loss=False,
    )
    spec = _with_returns(spec, settings, discount=settings.discount)
    return replace(spec, normalize_advantages=True)


def make_remax(name: str, settings: ReMaxSettings) -> AlgorithmSpec:
    """ReMax with ``settings``; the KL to the reference is taken off each token's reward."""
    spec = policy_gradient(
        name,
        settings,
        credit=greedy_baseline_credit,
        loss=bound(clipped_policy_loss, settings),
        kl_in_loss=False,
    )
    return _with_returns(spec, settings, discount=1.0)


def make_distillation(name: str, settings: DistillationSettings) -> AlgorithmSpec:
    """The policy's own tokens with minus the reverse KL of each as its advantage
    (arXiv:2306.13649, sec. 3.1, sampled); the teacher is the reference."""
    spec = policy_gradient(
        name,
        settings,
        credit=no_credit,
        loss=bound(clipped_policy_loss, settings),
        kl_in_loss=False,
    )
    return replace(spec, keep_group=keep_all, advantages=reverse_kl_advantages)


def _with_returns(
    spec: AlgorithmSpec, settings: KLInReward, *, discount: float
) -> AlgorithmSpec:
    """The advantage of a token is its return, with the KL off its reward. A return goes on into the
    trajectory's next sample."""
    advantages = bound(return_advantages, settings, discount=discount)
    return replace(spec, advantages=advantages, partition="trajectory")
