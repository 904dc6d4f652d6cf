"""PPO and its kin: a critic's values, generalised advantages, a clipped loss (arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec, AuxiliaryLoss
from agentrl.algorithms.builtin.policy_gradient import bound, policy_gradient
from agentrl.algorithms.functions.credit import lambda_concern, rank_weights, reward_credit
from agentrl.algorithms.functions.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    imitation_loss,
)
from agentrl.algorithms.functions.returns import critic_advantages
from agentrl.algorithms.settings.policy_gradient import (
    PFPPOSettings,
    PPOSettings,
    VAPOSettings,
)
from agentrl.types import Batch, SegmentKind
from agentrl.types.arrays import Bools


def make_ppo(name: str, settings: PPOSettings) -> AlgorithmSpec:
    """PPO with ``settings``; the KL to the reference is taken off each token's reward."""
    alpha = settings.gae.length_alpha
    spec = policy_gradient(
        name,
        settings,
        credit=partial(reward_credit, baseline="none"),
        loss=bound(clipped_policy_loss, settings),
        value_loss=partial(clipped_value_loss, clip=settings.value_clip),
        kl_in_loss=False,
    )
    return replace(
        spec,
        advantages=bound(critic_advantages, settings.gae, kl_coef=settings.kl_coef),
        normalize_advantages=True,
        # a return goes on into the trajectory's next sample
        partition="trajectory",
        critic_warmup_steps=settings.critic_warmup_steps,
        concern=partial(lambda_concern, alpha=alpha) if alpha else None,
    )


def make_pf_ppo(name: str, settings: PFPPOSettings) -> AlgorithmSpec:
    """PPO on the trajectories whose rewards tell most (arXiv:2409.06957)."""
    return replace(make_ppo(name, settings), select=bound(rank_weights, settings))


def make_vapo(name: str, settings: VAPOSettings) -> AlgorithmSpec:
    """PPO for long chains of thought: a critic that is warmed up, λ by length, decoupled returns,
    and imitation of what was right (arXiv:2504.05118)."""
    imitate = AuxiliaryLoss(
        "positive_nll",
        settings.positive_coef,
        partial(of_positive, above=settings.positive_above),
        imitation_loss,
    )
    return replace(make_ppo(name, settings), auxiliary=(imitate,))


def of_positive(batch: Batch, *, above: float) -> Bools:
    """``[T]`` the policy's tokens of trajectories with a reward above ``above``, also of those that
    weigh nothing in its own loss."""
    right, is_left_out = (
        column[batch.trajectory].repeat(batch.lengths)
        for column in (batch.reward > above, batch.weight == 0)
    )
    is_read = (batch.loss_mask != 0) | is_left_out
    found: Bools = (batch.kind == SegmentKind.POLICY) & right & is_read
    return found
