"""Records: what the functions of an algorithm read and return.

The driver's are numpy, the ranks' torch. Axes: G rollouts, J trajectories, S samples, U turns, N
trained tokens and C pairs of a micro-batch, T packed tokens of a shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from agentrl.types.arrays import F64, I64, U64, Bools

if TYPE_CHECKING:
    from torch import Tensor


AlgorithmState = Mapping[str, float]
"""What an algorithm carries from step to step (an adaptive coefficient); it is kept in checkpoints
as JSON.
"""


@dataclass(frozen=True, slots=True, eq=False)
class GroupSummary:
    """A finished group before it enters a batch; failed and cancelled rollouts are absent.

    Args:
        group_index: its position in the data order.
        rewards: ``[G]`` float64.
        num_tokens: ``[G]`` int64, tokens that the policy sampled.
        truncated: ``[G]`` bool, whether a limit ended the rollout.
        parts: ``[G]`` float64 by name, the parts of the rewards; NaN where a rollout lacks one.
    """

    group_index: int
    rewards: F64
    num_tokens: I64
    truncated: Bools
    parts: Mapping[str, F64] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Whether a group is trained.

    Args:
        keep: it is.
        reason: why not, as counted in metrics and ledger.
        credit_alone: what it lacks is the reward's credit alone: where an auxiliary loss reads its
            tokens it is kept for that, and weighs nothing in any other loss.
    """

    keep: bool
    reason: str = ""
    credit_alone: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rewards:
    """The finished trajectories of a batch.

    Args:
        reward: ``[J]`` float64, totals.
        group: ``[J]`` int64, equal for rollouts of one group.
        num_tokens: ``[J]`` int64, tokens that the policy sampled.
        truncated: ``[J]`` bool, whether a limit ended the trajectory.
        parts: ``[J]`` float64 by name, the parts of the rewards; NaN where a trajectory lacks one.
        baseline: ``[J]`` float64, reward of its group's greedy rollout; None unless
            ``needs.baseline``.
        turn_trajectory: ``[U]`` int64, row of a turn's trajectory; turns are in order.
        turn_reward: ``[U]`` float64, the steps' own rewards (already part of the totals).
        state_key: ``[U]`` uint64, hash of the state before the action; 0 where there is none.
        seed: for whatever the algorithm draws at random.
    """

    reward: F64
    group: I64
    num_tokens: I64
    truncated: Bools
    turn_trajectory: I64
    turn_reward: F64
    state_key: U64
    parts: Mapping[str, F64] = field(default_factory=dict)
    baseline: F64 | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """What each trajectory ``[J]`` and each turn ``[U]`` deserves; float64, finite."""

    trajectory: F64
    turn: F64


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Numbers of a mini-batch that are known before its first forward.

    Args:
        tokens: ``[S]`` int64, trained tokens of each sample.
        trajectory: ``[S]`` int64, row of each sample's trajectory.
        weight: ``[S]`` float64, the weight of its trajectory among the others (``select``); 1 each
            where nothing weighs them.
    """

    tokens: I64
    trajectory: I64
    weight: F64


@dataclass(frozen=True, slots=True, eq=False)
class TokenCredit:
    """Credit brought to the tokens of a shard, ``[T]`` each; zero off the mask.

    Args:
        trajectory: float32, the credit of the token's trajectory.
        turn: float32, the credit of the token's turn.
        reward: float32, the same credits where they fall due: a turn's on its last trained token, a
            trajectory's on its last one of all (docs/tokens.md, Batch).
        mask: float32, whether the token is trained, as 0 or 1.
        turn_row: int64, rows of turns: equal within a turn, growing within a trajectory.
        sample_row: int64, rows of samples.
        trajectory_row: int64, rows of trajectories.
        cut: bool, whether a limit ended the token's trajectory.
        interrupted: bool, whether that was none of the policy's doing (``Status.interrupted``).
        rollout_logprobs: float32, the sampler's.
        old_logprobs: float32; None unless ``needs.old_logprobs``, or where a later pass needs them.
        ref_logprobs: float32; None unless ``needs.reference``.
        values: float32, V(state before the token); None unless ``needs.critic``.
        final_values: float32, on the last trained token of each trajectory the critic's value
            behind its last token, else 0; None unless ``needs.critic``.
        state: the algorithm's own.
        columns: float, those of custom roles by ``ROLE/NAME``.
    """

    trajectory: Tensor
    turn: Tensor
    reward: Tensor
    mask: Tensor
    turn_row: Tensor
    sample_row: Tensor
    trajectory_row: Tensor
    cut: Tensor
    interrupted: Tensor
    rollout_logprobs: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    final_values: Tensor | None = None
    state: AlgorithmState = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Advantages:
    """``[T]`` float32 advantages, and what a critic's values should be; None without a critic.
    Further columns by ``ROLE/NAME``, such as ``cost/returns`` for a custom critic named cost.
    """

    advantages: Tensor
    returns: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInputs:
    """The trained tokens of a micro-batch and nothing else: an untrained token cannot reach a loss.

    A sample is whole in its micro-batch, so ``sequences.sum_over`` sees every trained token of it.

    Args:
        logprobs: ``[N]`` float32 with gradient, of the current policy at each sample's temperature.
        old_logprobs: ``[N]`` float32, π_old, from where ``AlgorithmSpec.old_logprobs`` says.
        rollout_logprobs: ``[N]`` float32, the sampler's; 0 for tokens that no engine sampled.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        entropy: ``[N]`` float32 nats of the current policy; with gradient where ``needs.entropy``.
        sample_row, turn_row, trajectory_row: ``[N]`` int64, rows: equal for tokens of one.
        staleness: ``[N]`` int64, published versions between the one that sampled the token and the
            one that is trained; 0 for tokens that no policy sampled.
        ref_logprobs: ``[N]`` float32, or None where ``needs.reference`` is false.
        advantages: ``[N]`` float32, or None where ``needs.advantages`` is false.
        state: the algorithm's own.
        columns: ``[N]`` those of custom roles by ``ROLE/NAME``.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    sampled: Tensor
    entropy: Tensor
    sample_row: Tensor
    turn_row: Tensor
    trajectory_row: Tensor
    staleness: Tensor
    ref_logprobs: Tensor | None = None
    advantages: Tensor | None = None
    state: AlgorithmState = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TokenStat:
    """A statistic of a micro-batch before it is merged: a detached sum over ``count`` tokens."""

    sum: Tensor
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """``[N]`` numbers that are added to a loss with a weight, whatever the correction says."""

    values: Tensor
    coef: float


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """``[N]`` losses, one a token, unreduced, and statistics by metric name.

    Args:
        loss: what ``correction`` multiplies.
        stats: by metric name.
        terms: what it does not, by name: ``kl``, the distance from the reference, and ``entropy``.
            The metric ``policy/NAME_loss`` is the sum of each before its weight.
        columns: ``[N]`` detached numbers of each token to keep with its trajectory, by name
            (docs/annotations.md).
    """

    loss: Tensor
    stats: Mapping[str, TokenStat] = field(default_factory=dict)
    terms: Mapping[str, Term] = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """``[N]`` detached factors of the loss, and statistics by metric name; 0 rejects a token."""

    factor: Tensor
    stats: Mapping[str, TokenStat] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ValueInputs:
    """The trained tokens of a micro-batch as a critic sees them, ``[N]`` float32 each.

    Args:
        values: of the current critic, with gradient.
        old_values: before the batch's first update.
        returns: what they should be.
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor


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
    stats: Mapping[str, TokenStat] = field(default_factory=dict)
