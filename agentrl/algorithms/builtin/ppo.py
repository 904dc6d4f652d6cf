"""PPO: a critic's values, generalised advantages, a clipped loss (arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.functions.credit import reward_credit
from agentrl.algorithms.functions.returns import critic_advantages
from agentrl.algorithms.functions.values import clipped_value_loss
from agentrl.algorithms.settings import PPOSettings


def make_ppo(settings: PPOSettings) -> AlgorithmSpec:
    """PPO with ``settings``; the KL to the reference is taken off each token's reward."""
    spec = policy_gradient(
        "ppo",
        settings,
        credit=partial(reward_credit, baseline="none"),
        loss=clipped_loss(settings),
        value_loss=partial(clipped_value_loss, clip=settings.value_clip),
        kl_in_loss=False,
    )
    return replace(
        spec,
        advantages=partial(
            critic_advantages,
            discount=settings.gae.discount,
            lam=settings.gae.lam,
            bootstrap=settings.gae.bootstrap,
            kl_coef=settings.kl_coef,
            kl_estimator=settings.kl_estimator,
            kl_cap=settings.kl_cap,
        ),
        normalize_advantages=True,
        partition="trajectory",  # a return goes on into the trajectory's next sample
        critic_warmup_steps=settings.critic_warmup_steps,
    )
