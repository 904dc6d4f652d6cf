"""Algorithm specification: an algorithm's traits, and one frozen record of its functions.

The driver's functions work in numpy, the ranks' in torch without communication; ``records`` says
what they read and return. Nothing outside this package compares an algorithm's name: whatever the
trainer must do is declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from agentrl.algorithms.records import (
    Advantages,
    AlgorithmState,
    Correction,
    Counts,
    Credit,
    FilterResult,
    GroupSummary,
    PairInputs,
    PairLoss,
    PolicyInputs,
    Rewards,
    TokenCredit,
    TokenLoss,
    ValueInputs,
)
from agentrl.errors import ConfigError
from agentrl.types import Batch, SegmentKind, Stats
from agentrl.types.arrays import F64, Bools

if TYPE_CHECKING:
    from agentrl.store import AnnotationColumn


LearnsFrom: TypeAlias = Literal["rollouts", "demonstrations", "preferences"]
"""Where an algorithm's tokens come from: episodes of the policy, conversations to imitate, or pairs
to compare.
"""

OldLogprobs: TypeAlias = Literal["auto", "current", "recompute", "rollout"]
"""Where π_old comes from. ``recompute``: a forward of the trainer before the batch's first update.
``current``: the update's own logprobs, detached, the same numbers where a batch gets one update.
``rollout``: the sampler's. ``auto``: ``current`` where that is right, else ``recompute``.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm needs beside the tokens of its batch.

    Args:
        old_logprobs: ``old_logprobs`` before credit is spread over tokens, as a KL in the reward
            reads them.
        reference: ``ref_logprobs`` of a frozen reference.
        critic: ``values`` of a critic, which is trained beside the policy.
        advantages: credit spread over tokens; imitation needs none.
        baseline: the reward of a greedy rollout of each group.
        entropy: the gradient of the entropy.
        rewards: those of its trajectories; otherwise they are metrics alone.
    """

    old_logprobs: bool = False
    reference: bool = False
    critic: bool = False
    advantages: bool = True
    baseline: bool = False
    entropy: bool = False
    rewards: bool = True


class Traits(Protocol):
    """What the settings of a built-in algorithm and the record of a user's own both tell."""

    @property
    def learns_from(self) -> LearnsFrom:
        """Where its tokens come from."""

    @property
    def group_size_min(self) -> int:
        """Rollouts that a group needs at least."""

    @property
    def on_policy_only(self) -> bool:
        """Whether a batch may get one update only, by the very weights that sampled it."""

    @property
    def corrects_staleness(self) -> bool:
        """Whether tokens that older weights sampled are weighted for the difference."""

    @property
    def needs(self) -> Needs:
        """What it needs beside the tokens."""


Unit = Literal["sample", "trajectory", "group"]
"""Whose samples stay on one data-parallel coordinate."""


@dataclass(frozen=True, slots=True)
class AuxiliaryLoss:
    """A further loss of the policy on tokens of its own choice, such as imitation of observations.

    It adds ``coef`` times the mean of ``loss`` over the selected tokens of a mini-batch, on all
    ranks. Its denominator is its own, so that it weighs the same however many tokens are trained
    by the policy's loss.

    Args:
        name: of its metric, ``policy/NAME``.
        coef: its weight.
        select: ``[T]`` bool, the tokens that it reads; those that open a sample, and those that
            an earlier sample owns, are left out by the trainer.
        loss: the losses of these N tokens, as of ``policy_loss`` but without terms; their
            advantages are 0 where the policy's loss does not train them.
    """

    name: str
    coef: float
    select: Callable[[Batch], Bools]
    loss: Callable[[PolicyInputs], TokenLoss]


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
            ``Σ_t w_s(t) · (c_t · ℓ_t + Σ_k β_k · k_t)``.
        policy_loss: ℓ per token, and terms k with their weights β; None where ``pair_loss`` is
            given.
        advantages: credit brought to tokens.
        select: ``[J]`` float64 weights of trajectories, at least 0; the loss is what it would be if
            each were in the batch that many times. None weighs them alike.
        correction: c_t, detached, against the sampler's own probabilities; None, or what returns
            None, is 1.
        always_corrects: whether ``correction`` never returns None, as older weights need.
        value_loss: of a critic, per token; needed with ``needs.critic``.
        auxiliary: further losses of the policy.
        next_state: the state after a step.
        initial_state: the state before the first.
        trains: kinds of token that the loss mask may select.
        pair_loss: ℓ, per pair, of an algorithm that trains a reward model on groups of two (the
            first is the better).
        needs: what must be computed before the update.
        old_logprobs: where π_old comes from; ``auto`` is settled by ``for_updates``.
        normalize_advantages: centre and scale advantages by their moments over the whole batch.
        num_epochs: passes over a batch; ``train.updates_per_batch`` of a run decides.
        critic_warmup_steps: steps in which the critic alone is updated.
        concern: what is wrong with the algorithm's settings for a batch, told once; empty for
            nothing.
        group_size_min: rollouts that a group needs at least.
        terms: names of ``TokenLoss.terms``.
        columns: what ``TokenLoss.columns`` holds, for who looks at it; a name that is not here is a
            plain number of each token.
        max_staleness: published versions that a token may lie back; None sets no bound of the
            algorithm's own.
        partition: whose samples stay on one rank: each alone, those of a trajectory, or those of a
            group, which then are in one micro-batch, as ``pair_loss`` needs.
        sources: the setting that a function came from, by the function's field.

    Raises:
        ConfigError: functions and declarations do not fit each other.
    """

    name: str
    keep_group: Callable[[GroupSummary], FilterResult]
    credit: Callable[[Rewards, AlgorithmState], Credit]
    reduction: Callable[[Counts], F64]
    policy_loss: Callable[[PolicyInputs], TokenLoss] | None
    advantages: Callable[[TokenCredit], Advantages]
    trains: frozenset[SegmentKind]
    select: Callable[[Rewards], F64] | None = None
    pair_loss: Callable[[PairInputs], PairLoss] | None = None
    correction: Callable[[PolicyInputs], Correction | None] | None = None
    always_corrects: bool = True
    value_loss: Callable[[ValueInputs], TokenLoss] | None = None
    auxiliary: tuple[AuxiliaryLoss, ...] = ()
    next_state: Callable[[AlgorithmState, Stats], AlgorithmState] = _same_state
    initial_state: AlgorithmState = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    old_logprobs: OldLogprobs = "auto"
    normalize_advantages: bool = False
    num_epochs: int = 1
    critic_warmup_steps: int = 0
    concern: Callable[[Rewards], str] | None = None
    group_size_min: int = 1
    terms: tuple[str, ...] = ()
    columns: tuple[AnnotationColumn, ...] = ()
    max_staleness: int | None = None
    partition: Unit = "sample"
    sources: Mapping[str, str] = field(default_factory=dict)

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
        if self.needs.critic != (self.value_loss is not None):
            raise ConfigError(
                f"algorithm {self.name!r} must have value_loss where needs.critic is true and only "
                f"there, got needs.critic={self.needs.critic} "
                f"{'without' if self.value_loss is None else 'with'} value_loss"
            )
        if self.critic_warmup_steps and not self.needs.critic:
            raise ConfigError(
                f"algorithm {self.name!r} must leave critic_warmup_steps at 0, since it needs no "
                f"critic, got {self.critic_warmup_steps}"
            )

    @property
    def learns_from(self) -> LearnsFrom:
        """Pairs for a reward model, given conversations where TARGET tokens are trained, else the
        policy's episodes.
        """
        if self.pair_loss is not None:
            return "preferences"
        return "demonstrations" if SegmentKind.TARGET in self.trains else "rollouts"

    @property
    def on_policy_only(self) -> bool:
        """See ``Traits``."""
        return self.old_logprobs == "rollout"

    @property
    def corrects_staleness(self) -> bool:
        """See ``Traits``."""
        return self.correction is not None and self.always_corrects

    @property
    def recomputes_old_logprobs(self) -> bool:
        """Whether the trainer computes π_old in a pass of its own."""
        return self.policy_loss is not None and self.old_logprobs in ("auto", "recompute")

    def told(self, function: str) -> str:
        """What errors call a function of this record, such as ``credit``."""
        return self.sources.get(function, f"algorithm {self.name!r}: its {function}")

    def for_updates(self, num_epochs: int, *, single: bool) -> AlgorithmSpec:
        """This algorithm where a batch gets so many passes.

        Args:
            num_epochs: passes over a batch.
            single: whether they come to one single optimizer step.
        """
        old = self.old_logprobs
        if old == "auto":
            old = "current" if single and not self.needs.old_logprobs else "recompute"
        return replace(self, num_epochs=num_epochs, old_logprobs=old)
