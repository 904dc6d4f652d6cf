"""GRPO: advantages relative to the group, and a clipped loss on the policy's own tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec, AuxiliaryLoss
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, group_credit, policy_gradient
from agentrl.algorithms.functions.losses import imitation_loss
from agentrl.algorithms.records import F64, Bool, Rewards
from agentrl.algorithms.settings import (
    DAPOSettings,
    DrGRPOSettings,
    ECHOSettings,
    GRPOSettings,
)
from agentrl.types import Batch, SegmentKind


def make_grpo(settings: GRPOSettings) -> AlgorithmSpec:
    """GRPO with ``settings`` (arXiv:2402.03300, arXiv:2503.14476)."""
    return policy_gradient(
        "grpo", settings, credit=group_credit(settings), loss=clipped_loss(settings)
    )


def make_dr_grpo(settings: DrGRPOSettings) -> AlgorithmSpec:
    """GRPO whose sums are divided by a constant (arXiv:2503.20783)."""
    return replace(make_grpo(settings), name="dr_grpo")


def make_dapo(settings: DAPOSettings) -> AlgorithmSpec:
    """GRPO by tokens, with clip-higher, dynamic sampling and shaped lengths (arXiv:2503.14476)."""
    select = without_truncated if settings.overlong_filter else None
    return replace(make_grpo(settings), name="dapo", select=select)


def make_echo(settings: ECHOSettings) -> AlgorithmSpec:
    """GRPO, and imitation of what tools and environments answer."""
    foretell = AuxiliaryLoss(
        "observation_nll", settings.observation_coef, observations, imitation_loss
    )
    return replace(make_grpo(settings), name="echo", auxiliary=(foretell,))


def without_truncated(rewards: Rewards) -> F64:
    """Weights of 0 for trajectories that a limit ended."""
    return np.where(rewards.truncated, 0.0, 1.0)


def observations(batch: Batch) -> Bool:
    """``[T]`` the tokens of tools and environments."""
    found: Bool = batch.kind == SegmentKind.OBSERVATION
    return found
