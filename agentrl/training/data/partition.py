"""Partition: assigns a step's samples to coordinates and micro-batches.

It is a pure function of lengths, groups, seed and layout (docs/training.md, Partition), so that a
step's numbers never depend on timing.

Axes: S samples of the whole batch, T packed tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.algorithms import Counts
from agentrl.errors import ConfigError
from agentrl.types import Batch, BatchShard
from agentrl.types.batch import token_rows

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_NONE: I64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Layout:
    """The distribution of a pass.

    Args:
        data_parallel: coordinates that get different samples.
        micro_batch_tokens: the most tokens of one forward and backward pass on one coordinate.
        length_scale: ℓ of a sample's cost n + n²/ℓ, tokens: at this length attention costs as much
            as the rest.

    Raises:
        ValueError: a value is not above 0.
    """

    data_parallel: int
    micro_batch_tokens: int
    length_scale: float

    def __post_init__(self) -> None:
        if self.data_parallel < 1 or self.micro_batch_tokens < 1 or not self.length_scale > 0:
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
    whole_groups: bool = False,
) -> tuple[Plan, ...]:
    """The mini-batches of a step, one plan each, in the order of their optimizer steps.

    Args:
        lengths: ``[S]`` tokens of each sample.
        groups: ``[S]`` equal for samples of one group; a group is never divided.
        seed: of the order of groups; unused for a single mini-batch.
        layout: the ranks and the size of a micro-batch.
        mini_batch_groups: groups of one optimizer step; None for all.
        whole_groups: all samples of a group are in one micro-batch, for losses that compare them.

    Raises:
        ConfigError: a sample, or a whole group, is longer than a micro-batch.
        ValueError: there is no sample, shapes differ, or ``mini_batch_groups`` is below 1.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    owners = np.asarray(groups, dtype=np.int64)
    if sizes.ndim != 1 or sizes.size == 0 or sizes.shape != owners.shape:
        raise ValueError(
            f"lengths and groups must be alike and not empty, got {sizes.shape} and {owners.shape}"
        )
    if mini_batch_groups is not None and mini_batch_groups < 1:
        raise ValueError(f"mini_batch_groups must be at least 1, got {mini_batch_groups}")
    if whole_groups:
        owners = np.unique(owners, return_inverse=True)[1]
        members = [np.flatnonzero(owners == group) for group in range(owners.max() + 1)]
        sizes = np.bincount(owners, weights=sizes).astype(np.int64)
        owners = np.arange(sizes.size)
    _check_fits(sizes, layout, whole_groups)
    order = np.unique(owners)
    step = order.size if mini_batch_groups is None else mini_batch_groups
    if step < order.size:
        order = np.random.default_rng(seed).permutation(order)
    plans = []
    for start in range(0, order.size, step):
        rows = np.flatnonzero(np.isin(owners, order[start : start + step]))
        plan = _plan(_balance(rows, sizes, layout), sizes, layout)
        plans.append(_with_members(plan, members) if whole_groups else plan)
    return tuple(plans)


def _with_members(plan: Plan, members: Sequence[I64]) -> Plan:
    """Replaces a plan's groups by their samples."""
    parts = []
    for part in plan.coordinates:
        samples = np.concatenate([_NONE, *(members[group] for group in part.samples)])
        micro_batches = tuple(
            tuple(row for group in micro for row in members[group].tolist())
            for micro in part.micro_batches
        )
        parts.append(ShardPlan(samples, micro_batches))
    return Plan(tuple(parts))


def repack(plan: Plan, lengths: npt.NDArray[np.integer], layout: Layout) -> Plan:
    """The same samples on the same coordinates in micro-batches of another size, for a forward
    pass.

    Raises:
        ConfigError: a sample is longer than a micro-batch.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    _check_fits(sizes[plan.samples], layout)
    return _plan([part.samples for part in plan.coordinates], sizes, layout)


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


def auxiliary_weights(batch: Batch, plan: Plan, tokens: npt.NDArray[np.bool_]) -> F32:
    """``[T]`` float32 weights of an auxiliary loss over the mini-batch of ``plan``: the mean over
    its tokens.

    Args:
        batch: the whole batch.
        plan: over rows of ``batch``.
        tokens: ``[T]`` bool, those that the loss asks for. A token counts once, in the sample that
            owns its turn, and none that opens a sample does.
    """
    chosen = tokens & batch.owned()
    chosen[batch.cu_seqlens[:-1]] = False
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
        auxiliary: ``[T]`` float32 weights by auxiliary loss (``auxiliary_weights``).
        algorithm_state: what the algorithm carries from step to step.
        policy_version: of the weights that are trained.
    """
    made = []
    for part in plan.coordinates:
        place = {row: position for position, row in enumerate(part.samples.tolist())}
        index = token_rows(batch.cu_seqlens, part.samples)
        made.append(
            BatchShard(
                batch.select(part.samples),
                part.samples,
                tuple(tuple(place[row] for row in micro) for micro in part.micro_batches),
                None if weights is None else weights[part.samples],
                {name: column[index] for name, column in (auxiliary or {}).items()},
                dict(algorithm_state or {}),
                policy_version,
            )
        )
    return made


def merge_columns(
    answers: Sequence[Mapping[str, F32]],
    parts: Sequence[BatchShard],
    cu_seqlens: npt.NDArray[np.int32],
) -> dict[str, F32]:
    """Merges the coordinates' per-token columns in the batch's own order.

    Args:
        answers: by coordinate, ``[T_local]`` columns by name.
        parts: the shards of these answers.
        cu_seqlens: ``[S+1]`` of the whole batch.

    Returns:
        ``[T]`` float32 columns; zeros for samples that no coordinate had.

    Raises:
        ValueError: a column does not have one value for each token of its shard.
    """
    columns: dict[str, F32] = {}
    for answer, part in zip(answers, parts, strict=True):
        index = token_rows(cu_seqlens, part.samples)
        for name, values in answer.items():
            if values.shape != index.shape:
                raise ValueError(
                    f"column {name!r} has shape {values.shape} for {index.size} tokens of its shard"
                )
            column = columns.setdefault(name, np.zeros(int(cu_seqlens[-1]), dtype=np.float32))
            column[index] = values
    return columns


def _check_fits(sizes: I64, layout: Layout, whole_groups: bool = False) -> None:
    longest = int(sizes.max(initial=0))
    if longest <= layout.micro_batch_tokens:
        return
    unit = "sample (a sample is never split)"
    remedy = (
        "raise it (and StageSettings.logprob_micro_batch_tokens), or lower "
        "EpisodeLimits.max_prompt_tokens or EpisodeLimits.max_response_tokens"
    )
    if whole_groups:
        unit = "pair (the two are compared in one micro-batch)"
        remedy = "raise it, or leave long pairs out of the data"
    raise ConfigError(
        f"StageSettings.micro_batch_tokens must be at least the longest {unit}, got "
        f"{layout.micro_batch_tokens} for one of {longest} tokens; {remedy}"
    )


def _balance(rows: I64, sizes: I64, layout: Layout) -> list[I64]:
    """Assigns the longest samples first to the least loaded coordinate; ties by row and by
    coordinate.
    """
    cost = sizes[rows] + sizes[rows].astype(np.float64) ** 2 / layout.length_scale
    loads = [0.0] * layout.data_parallel
    chosen: list[list[int]] = [[] for _ in loads]
    for position in np.lexsort((rows, -cost)):
        target = loads.index(min(loads))
        loads[target] += float(cost[position])
        chosen[target].append(int(rows[position]))
    return [np.asarray(part, dtype=np.int64) for part in chosen]


def _plan(parts: Sequence[I64], sizes: I64, layout: Layout) -> Plan:
    packed = [_first_fit(part, sizes, layout.micro_batch_tokens) for part in parts]
    count = max(map(len, packed))
    return Plan(
        tuple(
            ShardPlan(part, tuple(_split_to(micro_batches, sizes, count)))
            for part, micro_batches in zip(parts, packed, strict=True)
        )
    )


def _first_fit(rows: I64, sizes: I64, capacity: int) -> list[list[int]]:
    """First fit decreasing, ties by position."""
    bins: list[list[int]] = []
    free: list[int] = []
    for row in rows[np.argsort(-sizes[rows], kind="stable")].tolist():
        size = int(sizes[row])
        target = next((i for i, room in enumerate(free) if room >= size), len(bins))
        if target == len(bins):
            bins.append([])
            free.append(capacity)
        bins[target].append(row)
        free[target] -= size
    return bins


def _split_to(micro_batches: list[list[int]], sizes: I64, count: int) -> list[tuple[int, ...]]:
    """Halves the fullest micro-batch until there are ``count``; fillers replace what cannot be
    split.
    """
    parts = [tuple(rows) for rows in micro_batches]
    while len(parts) < count:
        divisible = [i for i, members in enumerate(parts) if len(members) > 1]
        if not divisible:
            return parts + [()] * (count - len(parts))
        fullest = max(divisible, key=lambda i: (int(sizes[list(parts[i])].sum()), -i))
        members = parts[fullest]
        parts[fullest : fullest + 1] = [members[0::2], members[1::2]]
    return parts
