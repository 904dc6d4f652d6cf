"""SFT: imitates TARGET tokens."""

from __future__ import annotations

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.functions.losses import broadcast_to_tokens, imitation_loss
from agentrl.algorithms.functions.reductions import reduction_of
from agentrl.algorithms.records import (
    AlgorithmState,
    Credit,
    FilterResult,
    GroupSummary,
    Rewards,
)
from agentrl.algorithms.settings import SFTSettings
from agentrl.types import SegmentKind


def make_sft(settings: SFTSettings) -> AlgorithmSpec:
    """Imitation with ``settings``; rewards in the data are not used."""
    return AlgorithmSpec(
        name="sft",
        keep_group=keep_all,
        credit=no_credit,
        reduction=reduction_of(settings.reduction, settings.constant_tokens),
        policy_loss=imitation_loss,
        advantages=broadcast_to_tokens,
        trains=frozenset({SegmentKind.TARGET}),
        needs=settings.needs,
        old_logprobs="current",  # nothing is compared with what sampled it
        group_size_min=settings.group_size_min,
    )


def keep_all(group: GroupSummary) -> FilterResult:
    """Keeps every group, because imitation compares none."""
    return FilterResult(True)


def no_credit(rewards: Rewards, state: AlgorithmState) -> Credit:
    """Zeros, because imitation assigns no credit."""
    return Credit(np.zeros(rewards.reward.shape), np.zeros(rewards.turn_trajectory.shape))
