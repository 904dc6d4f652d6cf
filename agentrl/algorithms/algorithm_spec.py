"""What an algorithm is to the trainer: one frozen record of functions, and the records that they
read and return.

The driver's functions work in numpy, the ranks' in torch without communication. Nothing outside
this package compares an algorithm's name: whatever the trainer must do is declared here.

Axes: G rollouts, J trajectories, S samples, U turns, N trained tokens and C pairs of a micro-batch,
T packed tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.settings import LearnsFrom
from agentrl.errors import ConfigError
from agentrl.types import SegmentKind, Stats

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.store import AnnotationColumn


F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

AlgorithmState = Mapping[str, float]
"""What an algorithm carries from step to step (an adaptive coefficient); it is kept in checkpoints
as JSON.
"""


Unit = Literal["sample", "trajectory", "group"]
"""Whose samples stay on one data-parallel coordinate."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupSummary:
    """A finished group before it enters a batch.

    Args:
        draw: its position in the data order.
        rewards: ``[G]`` float64, of the rollouts that finished; failed and cancelled ones are
            absent.
    """

    group_index: int
    rewards: F64


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Whether a group is trained; ``reason`` names why not, as counted in metrics and ledger."""

    keep: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """The rewards of a batch.

    Args:
        reward: ``[J]`` float64, totals of finished trajectories.
        group: ``[J]`` int64, equal for rollouts.
        turn_trajectory: ``[U]`` int64, row of a turn's trajectory.
        turn_reward: ``[U]`` float64, the steps' own rewards (already part of the totals).
        seed: for whatever the algorithm draws at random.
    """

    reward: F64
    group: I64
    turn_trajectory: I64
    turn_reward: F64
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """What each trajectory ``[J]`` and each turn ``[U]`` deserves; float64, finite."""

    trajectory: F64
    turn: F64


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Integers of a mini-batch, known before its first forward.

    Args:
        tokens: ``[S]`` int64, trained tokens of each sample.
        trajectory: ``[S]`` int64, row of each sample's trajectory.
    """

    tokens: I64
    trajectory: I64


@dataclass(frozen=True, slots=True)
class Needs:
    """What the loop must compute before the update.

    Args:
        old_logprobs: the policy's own logprobs before the first update of the batch, recomputed by
            the trainer.
        reference: ``ref_logprobs`` of a frozen reference.
        critic: ``values``; refused until a critic is built.
        advantages: credit spread over tokens; imitation needs none.
    """

    old_logprobs: bool = False
    reference: bool = False
    critic: bool = False
    advantages: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class TokenCredit:
    """Credit brought to the tokens of a shard, ``[T]`` float32 each; zero off the mask.

    Args:
        trajectory: the credit of the token's trajectory.
        turn: the credit of the token's turn.
        mask: whether the token is trained, as 0 or 1.
    """

    trajectory: Tensor
    turn: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Advantages:
    """``[T]`` float32 advantages."""

    advantages: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInputs:
    """The trained tokens of a micro-batch and nothing else: an untrained token cannot reach a loss.

    Args:
        logprobs: ``[N]`` float32 with gradient, of the current policy at each sample's temperature.
        rollout_logprobs: ``[N]`` the sampler's; 0 for tokens that no engine sampled.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        old_logprobs: ``[N]``, or None where ``needs.old_logprobs`` is false.
        ref_logprobs: ``[N]``, or None where ``needs.reference`` is false.
        advantages: ``[N]``, or None where ``needs.advantages`` is false.
    """

    logprobs: Tensor
    rollout_logprobs: Tensor
    sampled: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    advantages: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TokenStat:
    """A statistic of a micro-batch before it is merged: a detached sum over ``count`` tokens."""

    sum: Tensor
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """``[N]`` losses, one a token, unreduced, and statistics by metric name.

    Args:
        loss: what ``correction`` multiplies.
        stats: by metric name.
        kl: ``[N]`` estimates of KL(policy, reference), which no correction multiplies; None adds no
            such term.
        kl_coef: its weight.
        columns: ``[N]`` detached numbers of each token to keep with its trajectory, by name
            (docs/annotations.md).
    """

    loss: Tensor
    stats: Mapping[str, TokenStat] = field(default_factory=lambda: MappingProxyType({}))
    kl: Tensor | None = None
    kl_coef: float = 0.0
    columns: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, eq=False)
class PairInputs:
    """The pairs of a micro-batch, ``[C]`` float32 each.

    Args:
        chosen: score of the better trajectory, with gradient.
        rejected: score of the other, with gradient.
        margin: credit of the better less that of the other.
    """

    chosen: Tensor
    rejected: Tensor
    margin: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PairLoss:
    """``[C]`` losses, one a pair, unreduced, and statistics by metric name."""

    loss: Tensor
    stats: Mapping[str, TokenStat] = field(default_factory=lambda: MappingProxyType({}))


def _same_state(state: AlgorithmState, stats: Stats) -> AlgorithmState:
    return state


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """An algorithm, as the loop and the ranks call it.

    Args:
        name: for messages and records; nobody branches on it.
        keep_group: whether a finished group is trained.
        credit: numbers for each trajectory and turn of a batch.
        reduction: ``[S]`` float64 weights w_s; the loss of a mini-batch is
            ``Σ_t w_s(t) · (c_t · ℓ_t + β · k_t)``.
        policy_loss: ℓ per token, and k with its weight β; None where ``pair_loss`` is given.
        advantages: credit brought to tokens.
        correction: ``[N]`` detached factors c_t against the sampler's own probabilities; None is 1.
        next_state: the state after a step.
        initial_state: the state before the first.
        trains: kinds of token that the loss mask may select.
        pair_loss: ℓ, per pair, of an algorithm that trains a reward model on groups of two (the
            first is the better).
        needs: what must be computed before the update.
        normalize_advantages: centre and scale advantages by their moments over the whole batch.
        num_epochs: passes over a batch; ``train.updates_per_batch`` of a run decides.
        critic_warmup_steps: steps in which the critic alone is updated; refused until a critic is
            built.
        group_size_min: rollouts that a group needs at least.
        columns: what ``TokenLoss.columns`` holds, for who looks at it; a name that is not here is a
            plain number of each token.
        max_staleness: published versions that a token may lie back; None sets no bound of the
            algorithm's own.
        partition: whose samples stay on one rank: each alone, those of a trajectory, or those of a
            group, which then are in one micro-batch, as ``pair_loss`` needs.
    """

    name: str
    keep_group: Callable[[GroupSummary], FilterResult]
    credit: Callable[[Rewards, AlgorithmState], Credit]
    reduction: Callable[[Counts], F64]
    policy_loss: Callable[[PolicyInputs], TokenLoss] | None
    advantages: Callable[[TokenCredit], Advantages]
    trains: frozenset[SegmentKind]
    pair_loss: Callable[[PairInputs], PairLoss] | None = None
    correction: Callable[[PolicyInputs], Tensor] | None = None
    next_state: Callable[[AlgorithmState, Stats], AlgorithmState] = _same_state
    initial_state: AlgorithmState = field(default_factory=dict)
    needs: Needs = Needs()
    normalize_advantages: bool = False
    num_epochs: int = 1
    critic_warmup_steps: int = 0
    group_size_min: int = 1
    columns: tuple[AnnotationColumn, ...] = ()
    max_staleness: int | None = None
    partition: Unit = "sample"

    def __post_init__(self) -> None:
        if (self.policy_loss is None) == (self.pair_loss is None):
            found = "neither" if self.policy_loss is None else "both"
            raise ConfigError(
                f"algorithm {self.name!r} must have policy_loss or pair_loss, got {found}; give one"
            )
        if self.pair_loss is not None and self.partition != "group":
            raise ConfigError(
                f"algorithm {self.name!r} must declare partition='group', since pair_loss compares "
                f"the samples of a group, got {self.partition!r}"
            )
        for name, declared in (
            ("needs.critic", self.needs.critic),
            ("critic_warmup_steps", self.critic_warmup_steps),
        ):
            if declared:
                raise ConfigError(
                    f"algorithm {self.name!r} must leave {name} out, since this version trains no "
                    f"critic, got {declared}"
                )

    @property
    def learns_from(self) -> LearnsFrom:
        """Pairs for a reward model, given conversations where TARGET tokens are trained, else the
        policy's episodes.
        """
        if self.pair_loss is not None:
            return "preferences"
        return "demonstrations" if SegmentKind.TARGET in self.trains else "rollouts"
