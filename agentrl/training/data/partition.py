"""Partition: assigns a step's samples to coordinates and micro-batches.

It is a pure function of lengths, groups, common prefixes, seed and layout (docs/training.md,
Partition), so that a step's numbers never depend on timing.

Axes: S samples of the whole batch, T packed tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.algorithms import Counts
from agentrl.algorithms.algorithm_spec import Unit
from agentrl.errors import ConfigError
from agentrl.training.data.balance import balance
from agentrl.training.data.pieces import Places, SharedSizes, bundles_of
from agentrl.training.data.prefix_tree import PrefixOrder
from agentrl.types import Batch, BatchShard
from agentrl.types.arrays import F32, F64, I32, I64, Bools, Floats
from agentrl.types.batch import token_rows


@dataclass(frozen=True, slots=True)
class Layout:
    """The distribution of a pass.

    Args:
        data_parallel: coordinates that get different samples.
        micro_batch_tokens: the most tokens of one forward and backward pass on one coordinate; a
            common beginning that is computed once counts once.
        length_scale: ℓ of a sample's cost n + n²/ℓ, tokens: at this length attention costs as much
            as the rest.

    Raises:
        ValueError: a value is not above 0.
    """

    data_parallel: int
    micro_batch_tokens: int
    length_scale: float

    def __post_init__(self) -> None:
        if (
            self.data_parallel < 1
            or self.micro_batch_tokens < 1
            or not self.length_scale > 0
        ):
            raise ValueError(
                f"data_parallel, micro_batch_tokens and length_scale must be above 0, got {self}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class ShardPlan:
    """The part of one coordinate.

    Args:
        samples: ``[S_local]`` rows in the whole batch.
        micro_batches: rows in the whole batch; an empty one is a filler.
    """

    samples: I64
    micro_batches: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A pass over some samples: a ``ShardPlan`` for each coordinate, with equal numbers of
    micro-batches.
    """

    coordinates: tuple[ShardPlan, ...]

    @property
    def samples(self) -> I64:
        """All rows of the pass, ascending."""
        return np.sort(np.concatenate([part.samples for part in self.coordinates]))


def partition(
    lengths: npt.NDArray[np.integer],
    groups: npt.NDArray[np.integer],
    *,
    seed: int,
    layout: Layout,
    mini_batch_groups: int | None = None,
    unit: Unit = "sample",
    trajectory: npt.NDArray[np.integer] | None = None,
    prefixes: PrefixOrder | None = None,
) -> tuple[Plan, ...]:
    """The mini-batches of a step, one plan each, in the order of their optimizer steps.

    Args:
        lengths: ``[S]`` tokens of each sample.
        groups: ``[S]`` equal for samples of one group; a mini-batch never divides a group.
        seed: of the order of groups; unused for a single mini-batch.
        layout: the ranks and the size of a micro-batch.
        mini_batch_groups: groups of one optimizer step; None for all.
        unit: whose samples stay on one coordinate; a whole group also stays in one micro-batch, for
            losses that compare its samples.
        trajectory: ``[S]`` equal for samples of one trajectory; for ``unit="trajectory"``.
        prefixes: what samples begin with alike, if the model computes that once a micro-batch.

    Raises:
        ConfigError: a sample, or a group that is a unit, is longer than a micro-batch.
        ValueError: there is no sample, shapes differ, trajectories are missing, or
            ``mini_batch_groups`` is below 1.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    owners = np.asarray(groups, dtype=np.int64)
    if tokens.ndim != 1 or tokens.size == 0 or tokens.shape != owners.shape:
        raise ValueError(
            f"lengths and groups must be alike and not empty, got {tokens.shape} and {owners.shape}"
        )
    if mini_batch_groups is not None and mini_batch_groups < 1:
        raise ValueError(f"mini_batch_groups must be at least 1, got {mini_batch_groups}")
    known = PrefixOrder.without_sharing(owners) if prefixes is None else prefixes
    sizes = SharedSizes(tokens, known, layout.length_scale)
    units = _units(unit, owners[known.order], trajectory, known)
    longest = (
        [max(map(sizes.tokens, own)) for own in units.values()]
        if unit == "group"
        else tokens
    )
    _check_fits(int(max(longest)), layout, unit)
    # Sorted, so that the seed alone decides the order and not that of arrival.
    order = np.unique(owners)
    step = order.size if mini_batch_groups is None else mini_batch_groups
    if step < order.size:
        order = np.random.default_rng(seed).permutation(order)
    plans = []
    for start in range(0, order.size, step):
        bundles = [
            bundle
            for group in order[start : start + step].tolist()
            for bundle in bundles_of(group, units[group], sizes, layout.micro_batch_tokens)
        ]
        spread = balance(bundles, layout.data_parallel, sizes, layout.micro_batch_tokens)
        parts = [[piece for bundle in own for piece in bundle.pieces] for own in spread]
        plans.append(_plan(parts, sizes, layout))
    return tuple(plans)


def _units(
    unit: Unit,
    groups: I64,
    trajectory: npt.NDArray[np.integer] | None,
    prefixes: PrefixOrder,
) -> dict[int, list[Places]]:
    """The places of each unit, by group.

    Args:
        unit: what is a unit.
        groups: ``[S]`` by place.
        trajectory: ``[S]`` by row.
        prefixes: the places' rows.
    """
    owners = prefixes.order if unit == "sample" else groups
    if unit == "trajectory":
        if trajectory is None:
            raise ValueError('unit="trajectory" needs the trajectory of each sample')
        owners = np.asarray(trajectory, dtype=np.int64)[prefixes.order]
    members: dict[tuple[int, int], list[int]] = {}
    for place, key in enumerate(zip(groups.tolist(), owners.tolist(), strict=True)):
        members.setdefault(key, []).append(place)
    units: dict[int, list[Places]] = {}
    for (group, _), places in members.items():
        units.setdefault(group, []).append(tuple(places))
    return units


def repack(
    plan: Plan,
    lengths: npt.NDArray[np.integer],
    layout: Layout,
    prefixes: PrefixOrder | None = None,
) -> Plan:
    """The same samples on the same coordinates in micro-batches of another size, for a forward
    pass.

    Raises:
        ConfigError: a sample is longer than a micro-batch.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    _check_fits(int(tokens[plan.samples].max()), layout)
    known = (
        PrefixOrder.without_sharing(np.arange(tokens.size))
        if prefixes is None
        else prefixes
    )
    sizes = SharedSizes(tokens, known, layout.length_scale)
    place_of = {row: place for place, row in enumerate(sizes.rows)}
    parts = []
    for part in plan.coordinates:
        places = [place_of[row] for row in part.samples.tolist()]
        position = {place: number for number, place in enumerate(places)}
        pieces = [
            piece
            for run in sizes.runs(sorted(places))
            for bundle in bundles_of(
                0, [(p,) for p in run], sizes, layout.micro_batch_tokens
            )
            for piece in bundle.pieces
        ]
        parts.append(sorted(pieces, key=lambda own: min(position[place] for place in own)))
    return _plan(parts, sizes, layout)


def union(plans: Sequence[Plan]) -> Plan:
    """One pass over several mini-batches, with unchanged micro-batches, so that numbers agree
    exactly.
    """
    return Plan(
        tuple(
            ShardPlan(
                np.concatenate([part.samples for part in parts]),
                tuple(micro for part in parts for micro in part.micro_batches),
            )
            for parts in zip(*(plan.coordinates for plan in plans), strict=True)
        )
    )


def sample_weights(batch: Batch, plan: Plan, reduction: Callable[[Counts], F64]) -> F64:
    """``[S]`` float64 w_s by row of ``batch``, for the mini-batch of ``plan``; 0 for other
    samples.
    """
    rows = plan.samples
    ends = np.concatenate([[0], np.cumsum(batch.loss_mask != 0)])[batch.cu_seqlens]
    weights = np.zeros(batch.num_samples, dtype=np.float64)
    owners = batch.trajectory[rows].astype(np.int64)
    weights[rows] = reduction(Counts(np.diff(ends)[rows], owners, batch.weight[owners]))
    return weights


def auxiliary_weights(batch: Batch, plan: Plan, tokens: Bools) -> F32:
    """``[T]`` float32 weights of an auxiliary loss over the mini-batch of ``plan``: the mean over
    its tokens.

    Args:
        batch: the whole batch.
        plan: over rows of ``batch``.
        tokens: ``[T]`` bool, those that the loss asks for. A token counts once, in the sample that
            owns its turn, and none that opens a sample does, nor an image's placeholder.
    """
    chosen = tokens & batch.owned()
    chosen[batch.cu_seqlens[:-1]] = False
    # they say only how large an image is
    for image in batch.media:
        chosen[image["start"] : image["start"] + image["num_tokens"]] = False
    index = token_rows(batch.cu_seqlens, plan.samples)
    weights = np.zeros(batch.num_tokens, dtype=np.float32)
    count = np.count_nonzero(chosen[index])
    if count:
        weights[index] = chosen[index] / count
    return weights


def shards(
    batch: Batch,
    plan: Plan,
    weights: F64 | None = None,
    *,
    auxiliary: Mapping[str, F32] | None = None,
    algorithm_state: Mapping[str, float] | None = None,
    policy_version: int = 0,
) -> list[BatchShard]:
    """The shard of each coordinate.

    Args:
        batch: the whole batch.
        plan: over rows of ``batch``.
        weights: ``[S]`` float64 w_s by row of ``batch``; None for a pass without a loss.
        auxiliary: ``[T]`` float32 weights by auxiliary loss (``auxiliary_weights``). One without a
            token here is left out of all shards: it has no mean, and counts in none.
        algorithm_state: what the algorithm carries from step to step.
        policy_version: of the weights that are trained.
    """
    made = []
    read = {name: column for name, column in (auxiliary or {}).items() if column.any()}
    for part in plan.coordinates:
        place = {row: position for position, row in enumerate(part.samples.tolist())}
        index = token_rows(batch.cu_seqlens, part.samples)
        made.append(
            BatchShard(
                batch.select(part.samples),
                part.samples,
                tuple(tuple(place[row] for row in micro) for micro in part.micro_batches),
                None if weights is None else weights[part.samples],
                {name: column[index] for name, column in read.items()},
                dict(algorithm_state or {}),
                policy_version,
            )
        )
    return made


def merge_columns(
    answers: Sequence[Mapping[str, Floats]],
    parts: Sequence[BatchShard],
    cu_seqlens: I32,
) -> dict[str, Floats]:
    """Merges the coordinates' per-token columns in the batch's own order.

    Args:
        answers: by coordinate, ``[T_local]`` columns by name.
        parts: the shards of these answers.
        cu_seqlens: ``[S+1]`` of the whole batch.

    Returns:
        ``[T]`` columns, of the answers' dtype; zeros for samples that no coordinate had.

    Raises:
        ValueError: a column does not have one value for each token of its shard.
    """
    columns: dict[str, Floats] = {}
    for answer, part in zip(answers, parts, strict=True):
        index = token_rows(cu_seqlens, part.samples)
        for name, values in answer.items():
            if values.shape != index.shape:
                raise ValueError(
                    f"column {name!r} has shape {values.shape} for {index.size} tokens of its shard"
                )
            column = columns.setdefault(name, np.zeros(int(cu_seqlens[-1]), values.dtype))
            column[index] = values
    return columns


def _check_fits(longest: int, layout: Layout, unit: Unit = "sample") -> None:
    if longest <= layout.micro_batch_tokens:
        return
    what = "sample (a sample is never split)"
    remedy = (
        "raise it (and TrainConfig.logprob_micro_batch_tokens), or lower "
        "DataConfig.max_prompt_tokens or RolloutConfig.max_response_tokens"
    )
    if unit == "group":
        what = "group (its samples are compared in one micro-batch)"
        remedy = "raise it, or leave long pairs out of the data"
    raise ConfigError(
        f"TrainConfig.micro_batch_tokens must be at least the longest {what}, got "
        f"{layout.micro_batch_tokens} for one of {longest} tokens; {remedy}"
    )


def _plan(parts: Sequence[Sequence[Places]], sizes: SharedSizes, layout: Layout) -> Plan:
    """Fills the micro-batches of each coordinate with its pieces.

    The costliest come first everywhere: coordinates wait for each other at each micro-batch.
    """

    def cost(pieces: Sequence[Places]) -> float:
        return sum(map(sizes.cost, pieces))

    packed = [_first_fit(pieces, sizes, layout.micro_batch_tokens) for pieces in parts]
    count = max(map(len, packed))
    return Plan(
        tuple(
            ShardPlan(
                _rows_of(pieces, sizes),
                tuple(
                    tuple(_rows_of(micro, sizes).tolist())
                    for micro in sorted(
                        _split_to(micro_batches, sizes, count), key=cost, reverse=True
                    )
                ),
            )
            for pieces, micro_batches in zip(parts, packed, strict=True)
        )
    )


def _rows_of(pieces: Sequence[Places], sizes: SharedSizes) -> I64:
    return np.array(
        [sizes.rows[place] for piece in pieces for place in piece], dtype=np.int64
    )


def _first_fit(
    pieces: Sequence[Places], sizes: SharedSizes, capacity: int
) -> list[Sequence[Places]]:
    """First fit decreasing, ties by position."""
    bins: list[list[Places]] = []
    free: list[int] = []
    for piece in sorted(pieces, key=lambda own: -sizes.tokens(own)):
        size = sizes.tokens(piece)
        target = next((i for i, room in enumerate(free) if room >= size), len(bins))
        if target == len(bins):
            bins.append([])
            free.append(capacity)
        bins[target].append(piece)
        free[target] -= size
    return list(bins)


def _split_to(
    micro_batches: Sequence[Sequence[Places]], sizes: SharedSizes, count: int
) -> list[Sequence[Places]]:
    """Halves the fullest micro-batch, between its pieces, until there are ``count``; fillers
    replace what cannot be split.
    """
    parts = list(micro_batches)
    while len(parts) < count:
        divisible = [i for i, pieces in enumerate(parts) if len(pieces) > 1]
        if not divisible:
            return [*parts, *([()] * (count - len(parts)))]
        fullest = max(divisible, key=lambda i: (sum(map(sizes.tokens, parts[i])), -i))
        pieces = parts[fullest]
        parts[fullest : fullest + 1] = [pieces[0::2], pieces[1::2]]
    return parts
