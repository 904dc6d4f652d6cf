"""Reward model: learns from pairs which of two trajectories is better."""

from __future__ import annotations

from functools import partial

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.sft import keep_all
from agentrl.algorithms.functions.losses import bradley_terry_loss, broadcast_to_tokens
from agentrl.algorithms.functions.reductions import pair_mean
from agentrl.algorithms.records import AlgorithmState, Credit, Rewards
from agentrl.algorithms.settings import RewardModelSettings
from agentrl.types import SegmentKind


def make_reward_model(settings: RewardModelSettings) -> AlgorithmSpec:
    """A reward model with ``settings``; groups are pairs whose first trajectory is the better
    one.
    """
    return AlgorithmSpec(
        name="reward_model",
        keep_group=keep_all,
        credit=partial(margin_credit, use_margin=settings.use_margin),
        reduction=pair_mean,
        policy_loss=None,
        pair_loss=partial(bradley_terry_loss, centring=settings.centring),
        advantages=broadcast_to_tokens,
        trains=frozenset({SegmentKind.TARGET}),
        needs=settings.needs,
        group_size_min=settings.group_size_min,
        partition="group",
    )


def margin_credit(rewards: Rewards, state: AlgorithmState, *, use_margin: bool) -> Credit:
    """A pair's margin is the difference of its trajectories' rewards; zeros without margins."""
    credit = rewards.reward if use_margin else np.zeros(rewards.reward.shape)
    return Credit(trajectory=credit, turn=np.zeros(rewards.turn_trajectory.shape))
