"""Batch: the packed columns that the trainer learns from (docs/tokens.md, Batch).

Axes: T tokens, S samples, U turns, J trajectories, I images. Entry t of every [T] array is about
token t.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl.types.arrays import (
    F32,
    F64,
    I32,
    I64,
    U64,
    AnyArray,
    Bools,
    Experts,
    Floats,
    recorded,
    row_numbers,
)
from agentrl.types.segment import MediaSpan, SegmentKind

Media: TypeAlias = npt.NDArray[np.void]
"""Images as arrays: ``start`` and ``num_tokens`` of their placeholders, and ``sha256``."""

_MEDIA = np.dtype([("start", np.int64), ("num_tokens", np.int64), ("sha256", "U64")])

_LATER = ("old_logprobs", "ref_logprobs", "values", "final_values", "advantages", "returns")
_AT_ROLLOUT = ("token_ids", "kind", "loss_mask", "rollout_logprobs", "policy_versions")
_TOKEN_COLUMNS = (*_AT_ROLLOUT, "turn_index", "routed_experts", *_LATER)
_OF_A_CRITIC = ("values", "final_values", "returns")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples packed end to end; entries outside the loss mask are 0, never NaN.

    Args:
        token_ids: ``[T]`` int32.
        kind: ``[T]`` int8, a ``SegmentKind`` each.
        loss_mask: ``[T]`` float32: the token's weight within its sample (1), or 0 if it is not
            trained.
        rollout_logprobs: ``[T]`` float32, the sampler's log p(token | earlier tokens of its
            sample).
        policy_versions: ``[T]`` int32, -1 for tokens that no policy sampled.
        turn_index: ``[T]`` int32, row of the token's turn in the [U] columns.
        cu_seqlens: ``[S+1]`` int32, sample boundaries.
        trajectory: ``[S]`` int32, row of the sample's trajectory.
        temperature: ``[S]`` float32, the sampler's.
        turn_trajectory: ``[U]`` int32.
        turn_reward: ``[U]`` float32, the step's reward.
        turn_credit: ``[U]`` float32, the algorithm's ``credit`` of a turn.
        state_key: ``[U]`` uint64, hash of the state before the action (``Turn.state_key``).
        group: ``[J]`` int32, row of the trajectory's group in the batch.
        group_index: ``[J]`` int64, the group's index in the data order.
        rollout_index: ``[J]`` int32, the trajectory's index in its group.
        reward: ``[J]`` float32, the total.
        credit: ``[J]`` float32, the algorithm's ``credit`` of a trajectory.
        weight: ``[J]`` float64, the trajectory's weight among the others.
        truncated: ``[J]`` bool, whether a limit ended the trajectory.
        interrupted: ``[J]`` bool, whether that was none of the policy's doing.
        media: ``[I]`` the images whose placeholders are among the tokens, by ``start``.
        old_logprobs, ref_logprobs, values, final_values, advantages, returns: ``[T]``, joined after
            their passes; float32, or float64 of a float64 model.
        own: ``[T]`` columns of custom roles, by ``ROLE/NAME``.
        routed_experts: ``[T, L, k]`` the experts that each token is to go through; None lets every
            token route itself.

    Raises:
        ValueError: a column has another length, or the sample boundaries do not span the tokens.
    """

    token_ids: I32
    kind: npt.NDArray[np.int8]
    loss_mask: F32
    rollout_logprobs: F32
    policy_versions: I32
    turn_index: I32
    cu_seqlens: I32
    trajectory: I32
    temperature: F32
    turn_trajectory: I32
    turn_reward: F32
    turn_credit: F32
    state_key: U64
    group: I32
    group_index: I64
    rollout_index: I32
    reward: F32
    credit: F32
    weight: F64
    truncated: Bools
    interrupted: Bools
    media: Media = field(default_factory=lambda: media_array(()))
    old_logprobs: Floats | None = None
    ref_logprobs: Floats | None = None
    values: Floats | None = None
    final_values: Floats | None = None
    advantages: Floats | None = None
    returns: Floats | None = None
    own: Mapping[str, Floats] = field(default_factory=dict)
    routed_experts: Experts | None = None

    def __post_init__(self) -> None:
        for name, column in self.token_columns().items():
            of_token = column.shape[1:] if name == "routed_experts" else ()
            if column.shape != (shape := (self.num_tokens, *of_token)):
                raise ValueError(
                    f"batch.{name} must have shape {shape}, got {column.shape}"
                )
        if self.cu_seqlens[0] != 0 or self.cu_seqlens[-1] != self.num_tokens:
            raise ValueError(
                f"batch.cu_seqlens must run from 0 to {self.num_tokens}, got "
                f"{self.cu_seqlens[[0, -1]]}"
            )

    @property
    def num_tokens(self) -> int:
        """The number of tokens, T."""
        return int(self.token_ids.size)

    @property
    def num_samples(self) -> int:
        """The number of samples, S."""
        return int(self.cu_seqlens.size) - 1

    @property
    def num_trajectories(self) -> int:
        """The number of trajectories, J."""
        return int(self.reward.size)

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return int(np.unique(self.group).size)

    @property
    def lengths(self) -> I32:
        """``[S]`` tokens of each sample."""
        return np.diff(self.cu_seqlens).astype(np.int32)

    def join(self, columns: Mapping[str, Floats]) -> Batch:
        """This batch with the ``[T]`` columns of a pass.

        Raises:
            KeyError: a name that is no joinable column.
            ValueError: a wrong shape, or a value that is not finite.
        """
        for name, column in columns.items():
            if name not in _LATER and "/" not in name:
                raise KeyError(
                    f"{name!r} is no column that a pass may join; those are {', '.join(_LATER)}"
                )
            if not_finite := int((~np.isfinite(column)).sum()):
                raise ValueError(
                    f"batch.{name} holds {not_finite} values that are not finite"
                )
        own = {name: column for name, column in columns.items() if "/" in name}
        joined = {name: column for name, column in columns.items() if name not in own}
        return replace(self, **joined, own={**self.own, **own})  # type: ignore[arg-type]

    def seen_by(self, role: str) -> Batch:
        """The batch as a custom role sees it: what a critic calls its columns are its own,
        and absent where it has none."""
        columns = {name: self.own.get(f"{role}/{name}") for name in _OF_A_CRITIC}
        return replace(self, **columns)  # type: ignore[arg-type]

    def token_columns(self) -> dict[str, AnyArray]:
        """The columns with a row for each token that are present, by name."""
        columns = {name: getattr(self, name) for name in _TOKEN_COLUMNS} | dict(self.own)
        return {name: column for name, column in columns.items() if column is not None}

    def sampled_rows(self) -> list[I64]:
        """For each trajectory the positions of its POLICY tokens, each token once, in turn order.

        A turn on several paths lies in several samples. Its positions are those in the first of
        them, which is the one that trains it.
        """
        rows = np.flatnonzero((self.kind == SegmentKind.POLICY) & self.owned())
        rows = rows[np.argsort(self.turn_index[rows], kind="stable")]
        owners = self.turn_trajectory[self.turn_index[rows]]
        return np.split(rows, np.searchsorted(owners, np.arange(1, self.num_trajectories)))

    def owned(self) -> Bools:
        """``[T]`` whether the token's sample is the first one with its turn, which trains it."""
        # pieces of one turn in one sample, of which there are far fewer than tokens
        starts = np.ones(self.turn_index.size, np.bool_)
        np.not_equal(self.turn_index[1:], self.turn_index[:-1], out=starts[1:])
        starts[self.cu_seqlens[:-1]] = True
        at = np.flatnonzero(starts)
        turns = self.turn_index[at]
        samples = np.searchsorted(self.cu_seqlens, at, side="right")
        first = np.zeros(self.turn_trajectory.size, np.int64)
        # of several the last one written counts: the first one
        first[turns[::-1]] = samples[::-1]
        return np.repeat(samples == first[turns], np.diff(at, append=self.turn_index.size))

    def identities(self) -> I32:
        """``[T]`` the token ids, in which each image's placeholders are its own number below 0:
        samples begin alike as far as these are equal. Equal tokens with other experts are not, and
        all have numbers of their own then."""
        ids = self.token_ids
        if self.media.size:
            ids = ids.copy()
            _, numbers = np.unique(self.media["sha256"], return_inverse=True)
            for image, number in zip(self.media, numbers.tolist(), strict=True):
                ids[image["start"] : image["start"] + image["num_tokens"]] = -1 - number
        return ids if self.routed_experts is None else row_numbers(ids, self.routed_experts)

    @property
    def num_unrecorded(self) -> int:
        """Tokens that route themselves, of those that another token follows: nothing reads what a
        sample's last one computes."""
        if self.routed_experts is None:
            return 0
        alone = ~recorded(self.routed_experts)
        alone[self.cu_seqlens[1:] - 1] = False
        return int(np.count_nonzero(alone))

    def select(self, samples: Sequence[int] | npt.NDArray[np.integer]) -> Batch:
        """The batch of the given samples, in the given order.

        The [U] and [J] columns stay whole, so that row numbers stay valid.
        """
        rows = np.asarray(samples, dtype=np.int64)
        cu_seqlens = np.cumsum([0, *self.lengths[rows]]).astype(np.int32)
        index = token_rows(self.cu_seqlens, rows)
        columns = {name: column[index] for name, column in self.token_columns().items()}
        own = {name: columns.pop(name) for name in self.own}
        return replace(
            self,
            **columns,  # type: ignore[arg-type]
            own=own,  # type: ignore[arg-type]
            media=self._moved(rows, cu_seqlens) if self.media.size else self.media,
            cu_seqlens=cu_seqlens,
            trajectory=self.trajectory[rows],
            temperature=self.temperature[rows],
        )

    def _moved(self, rows: I64, cu_seqlens: I32) -> Media:
        """The images of samples that lie at other boundaries."""
        found = [self.media[:0]]
        for row, first in zip(rows.tolist(), cu_seqlens[:-1].tolist(), strict=True):
            low, high = self.cu_seqlens[row : row + 2].tolist()
            own = media_within(self.media, low, high)
            own["start"] += first
            found.append(own)
        return np.concatenate(found)


def token_rows(cu_seqlens: I32, samples: I64) -> I64:
    """Positions in the packed axis of the tokens of ``samples``, in their order."""
    parts = [
        np.arange(cu_seqlens[row], cu_seqlens[row + 1], dtype=np.int64) for row in samples
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def media_array(spans: Iterable[MediaSpan]) -> Media:
    """``[I]`` the images of spans."""
    return np.array([(one.start, one.num_tokens, one.sha256) for one in spans], _MEDIA)


def media_within(media: Media, low: int, high: int) -> Media:
    """The images with placeholders in ``[low, high)``, with starts that count from ``low``: of one
    that begins before, below 0."""
    found: Media = media[
        (media["start"] < high) & (media["start"] + media["num_tokens"] > low)
    ]
    found["start"] -= low
    return found


@dataclass(frozen=True, slots=True, eq=False)
class BatchShard:
    """The part of a batch that one data-parallel coordinate gets.

    Args:
        batch: this coordinate's samples.
        samples: ``[S_local]`` their rows in the whole batch, by which columns are merged back.
        micro_batches: row indices into ``batch`` by micro-batch. An empty one is a filler of one
            token with weight 0, so that every coordinate runs the same collectives.
        sample_weight: ``[S_local]`` float64, w_s of docs/training.md; None for passes without a
            loss.
        auxiliary: ``[T_local]`` float32 weights of tokens by auxiliary loss; 0 for those that it
            leaves out.
        algorithm_state: what the algorithm carries from step to step.
        policy_version: of the weights that are trained, before the batch's first update.
    """

    batch: Batch
    samples: I64
    micro_batches: tuple[tuple[int, ...], ...]
    sample_weight: F64 | None = None
    auxiliary: Mapping[str, F32] = field(default_factory=dict)
    algorithm_state: Mapping[str, float] = field(default_factory=dict)
    policy_version: int = 0

    def wanted(self) -> Bools:
        """``[T_local]`` tokens that a loss reads."""
        found: Bools = self.batch.loss_mask != 0
        for weights in self.auxiliary.values():
            found = found | (weights != 0)
        return found
