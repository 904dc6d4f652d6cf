"""GRPO: advantages relative to the group, and a clipped loss on the policy's own tokens."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.functions.corrections import truncated_importance
from agentrl.algorithms.functions.credit import group_advantages, keep_informative_group
from agentrl.algorithms.functions.losses import broadcast_to_tokens, clipped_policy_loss
from agentrl.algorithms.functions.reductions import reduction_of
from agentrl.algorithms.records import AlgorithmState, Credit, Rewards
from agentrl.algorithms.settings import GRPOSettings
from agentrl.types import SegmentKind


def make_grpo(settings: GRPOSettings) -> AlgorithmSpec:
    """GRPO with ``settings`` (arXiv:2402.03300, arXiv:2503.14476)."""
    return AlgorithmSpec(
        name="grpo",
        keep_group=partial(
            keep_informative_group, filter_zero_variance=settings.filter_zero_variance
        ),
        credit=partial(
            group_relative_credit, scale_rewards=settings.scale_rewards, eps=settings.std_eps
        ),
        reduction=reduction_of(settings.reduction, settings.constant_tokens),
        policy_loss=partial(
            clipped_policy_loss,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            clip_dual=settings.clip_dual,
            kl_coef=settings.kl_coef,
            kl_cap=settings.kl_cap,
        ),
        advantages=broadcast_to_tokens,
        trains=frozenset({SegmentKind.POLICY}),
        correction=partial(truncated_importance, cap=settings.rollout_correction.cap)
        if settings.corrects_staleness
        else None,
        needs=settings.needs,
        old_logprobs=settings.old_logprobs,
        group_size_min=settings.group_size_min,
        terms=("kl",) if settings.kl_coef > 0 else (),
        max_staleness=0 if settings.on_policy_only else None,
    )


def group_relative_credit(
    rewards: Rewards, state: AlgorithmState, *, scale_rewards: Literal["none", "std"], eps: float
) -> Credit:
    """A trajectory's credit is its advantage over its group; turns get none of their own."""
    return Credit(
        trajectory=group_advantages(
            rewards.reward, rewards.group, scale_rewards=scale_rewards, eps=eps
        ),
        turn=np.zeros(rewards.turn_trajectory.shape, dtype=np.float64),
    )
