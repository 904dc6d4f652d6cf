"""Supervised: imitation of TARGET tokens, and reward models that learn from pairs."""

from __future__ import annotations

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import bound
from agentrl.algorithms.functions.losses import (
    bradley_terry_loss,
    broadcast_to_tokens,
    imitation_loss,
)
from agentrl.algorithms.functions.reductions import pair_mean, reduction_of
from agentrl.algorithms.records import (
    AlgorithmState,
    Credit,
    FilterResult,
    GroupSummary,
    Rewards,
)
from agentrl.algorithms.settings.base import RewardModelSettings, SFTSettings
from agentrl.types import SegmentKind


def make_sft(name: str, settings: SFTSettings) -> AlgorithmSpec:
    """Imitation with ``settings``; rewards in the data are not used."""
    return AlgorithmSpec(
        name=name,
        keep_group=keep_all,
        credit=no_credit,
        reduction=reduction_of(settings.reduction, settings.constant_tokens),
        policy_loss=imitation_loss,
        advantages=broadcast_to_tokens,
        trains=frozenset({SegmentKind.TARGET}),
        needs=settings.needs,
        # nothing is compared with what sampled it
        old_logprobs="current",
        group_size_min=settings.group_size_min,
    )


def make_reward_model(name: str, settings: RewardModelSettings) -> AlgorithmSpec:
    """A reward model with ``settings``; groups are pairs whose first trajectory is the better
    one.
    """
    return AlgorithmSpec(
        name=name,
        keep_group=keep_all,
        credit=bound(margin_credit, settings),
        reduction=pair_mean,
        policy_loss=None,
        pair_loss=bound(bradley_terry_loss, settings),
        advantages=broadcast_to_tokens,
        trains=frozenset({SegmentKind.TARGET}),
        needs=settings.needs,
        group_size_min=settings.group_size_min,
        partition="group",
    )


def keep_all(group: GroupSummary) -> FilterResult:
    """Keeps every group, because nothing compares its rewards."""
    return FilterResult(True)


def no_credit(rewards: Rewards, state: AlgorithmState) -> Credit:
    """Zeros: rewards are metrics alone."""
    return Credit(np.zeros(rewards.reward.shape), np.zeros(rewards.turn_trajectory.shape))


def margin_credit(rewards: Rewards, state: AlgorithmState, *, use_margin: bool) -> Credit:
    """A pair's margin is the difference of its trajectories' rewards; zeros without margins."""
    credit = rewards.reward if use_margin else np.zeros(rewards.reward.shape)
    return Credit(trajectory=credit, turn=np.zeros(rewards.turn_trajectory.shape))
