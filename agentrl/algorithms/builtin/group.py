"""Group: algorithms that compare the rollouts of a group.

Each is a credit and a loss, which are given the settings of the names that they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec, AuxiliaryLoss
from agentrl.algorithms.builtin.policy_gradient import bound, policy_gradient
from agentrl.algorithms.functions.corrections import no_correction
from agentrl.algorithms.functions.credit import (
    group_in_group_credit,
    group_relative_credit,
    leave_one_out_credit,
    turn_level_credit,
)
from agentrl.algorithms.functions.losses import (
    clipped_policy_loss,
    divergence_policy_loss,
    gated_policy_loss,
    imitation_loss,
    sequence_policy_loss,
    weighted_policy_loss,
)
from agentrl.algorithms.records import Credit, Rewards, TokenLoss
from agentrl.algorithms.settings.policy_gradient import (
    DAPOSettings,
    DPPOSettings,
    ECHOSettings,
    PolicyGradientSettings,
)
from agentrl.types import Batch, SegmentKind
from agentrl.types.arrays import F64, Bools

_PARTS: Mapping[str, tuple[Callable[..., Credit], Callable[..., TokenLoss]]] = {
    "cispo": (group_relative_credit, weighted_policy_loss),
    "dapo": (group_relative_credit, clipped_policy_loss),
    "dppo": (group_relative_credit, divergence_policy_loss),
    "dr_grpo": (group_relative_credit, clipped_policy_loss),
    "echo": (group_relative_credit, clipped_policy_loss),
    "gigpo": (group_in_group_credit, clipped_policy_loss),
    "grpo": (group_relative_credit, clipped_policy_loss),
    "gspo": (group_relative_credit, sequence_policy_loss),
    "rloo": (leave_one_out_credit, clipped_policy_loss),
    "sapo": (group_relative_credit, gated_policy_loss),
    "turn_grpo": (turn_level_credit, clipped_policy_loss),
}


def make(name: str, settings: PolicyGradientSettings) -> AlgorithmSpec:
    """The algorithm of a name with ``settings``; papers are named by credits, losses and
    settings."""
    credit, loss = _PARTS[name]
    return policy_gradient(
        name, settings, credit=bound(credit, settings), loss=bound(loss, settings)
    )


def make_dapo(name: str, settings: DAPOSettings) -> AlgorithmSpec:
    """GRPO by tokens, with clip-higher, dynamic sampling and shaped lengths (arXiv:2503.14476)."""
    select = without_truncated if settings.overlong_filter else None
    return replace(make(name, settings), select=select)


def make_dppo(name: str, settings: DPPOSettings) -> AlgorithmSpec:
    """DPPO; its ratio makes up for the sampler, so that π_old is for statistics alone
    (arXiv:2602.04879)."""
    return replace(make(name, settings), correction=no_correction)


def make_echo(name: str, settings: ECHOSettings) -> AlgorithmSpec:
    """GRPO, and imitation of what tools and environments answer."""
    foretell = AuxiliaryLoss(
        "observation_nll", settings.observation_coef, observations, imitation_loss
    )
    return replace(make(name, settings), auxiliary=(foretell,))


def without_truncated(rewards: Rewards) -> F64:
    """Weights of 0 for trajectories that a limit ended."""
    return np.where(rewards.truncated, 0.0, 1.0)


def observations(batch: Batch) -> Bools:
    """``[T]`` the tokens of tools and environments."""
    found: Bools = batch.kind == SegmentKind.OBSERVATION
    return found
