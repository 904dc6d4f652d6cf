"""Blame: who carries a step's loss, mismatch, entropy or clipping: tokens, turns, trajectories.

Each trained token has a part of the logged number, and the parts sum to it. Formulas:
docs/behaviour-and-blame.md.

Axes: N all tokens of a trajectory, P its policy tokens, in turn order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal, get_args

import numpy as np

from agentrl.errors import DataError
from agentrl.store import Annotation, RunDirectory, TrajectoryReader, TrajectorySummary
from agentrl.store.annotations.annotation import LOSS_REASONS
from agentrl.types import SegmentKind
from agentrl.types.arrays import F64, I64, AnyArray, Bools
from agentrl.viewer.analysis.stored_rows import stored_rows
from agentrl.viewer.index import Place

_COUNTED = [LOSS_REASONS.index(reason) for reason in ("trained", "off_policy")]

TRAINED_COLUMNS = ("token_ids", "kinds", "turn_index", "logprobs")


class NotRecordedError(DataError):
    """What an analysis needs was not recorded; the message names the setting that records it."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTokens:
    """The policy tokens of one trajectory.

    Args:
        trajectory_id: whose.
        positions: ``[P]`` their places among all N tokens.
        turns: ``[P]`` their turns, ascending.
        token_ids: ``[P]``.
        rollout_logprobs: ``[P]`` the sampler's, in nats.
        arrays: ``[P]`` each, as annotated.
    """

    trajectory_id: str
    positions: I64
    turns: I64
    token_ids: I64
    rollout_logprobs: F64
    arrays: Mapping[str, AnyArray]

    @property
    def trained(self) -> Bools:
        """``[P]`` whether the token counts in the step's statistics: it is in the loss, or a
        correction gave it the weight 0 there.
        """
        if "loss_reason" in self.arrays:
            return np.isin(self.column("loss_reason", "tokens"), _COUNTED)
        # another producer may give weights alone
        return np.not_equal(self.column("loss_weight", "tokens"), 0)

    def column(self, name: str, detail: str) -> F64:
        """An annotated column ``[P]``.

        Args:
            name: the column's.
            detail: the least ``store.detail`` that records it, for the message.

        Raises:
            NotRecordedError: it is missing.
            DataError: it has another length.
        """
        if name not in self.arrays:
            raise NotRecordedError(
                f"trajectory {self.trajectory_id!r} has no {name!r} of its training step, got "
                f"{', '.join(sorted(self.arrays)) or 'no columns'}; "
                f"store.detail: {detail} records it"
            )
        values = np.asarray(self.arrays[name], dtype=np.float64)
        if values.size != self.positions.size:
            raise DataError(
                f"{name!r} of trajectory {self.trajectory_id!r} must have an entry for each of its "
                f"{self.positions.size} policy tokens, got {values.size}"
            )
        return values


def trained_tokens(
    run: RunDirectory,
    reader: TrajectoryReader,
    places: Iterable[TrajectorySummary | Place],
    annotations: Iterable[Annotation],
) -> Iterator[TrainedTokens]:
    """The policy tokens of each annotated trajectory, in the order of the files.

    Args:
        run: where.
        reader: the run's.
        places: all trajectories that may be annotated.
        annotations: of one step and learner; of two arrays of a name the later one counts.

    Raises:
        StoreError: a file is damaged.
    """
    arrays: dict[str, dict[str, Any]] = {}
    for annotation in annotations:
        arrays.setdefault(annotation.trajectory_id, {}).update(annotation.arrays)
    trained = [place for place in places if arrays.get(place.id)]
    for row in stored_rows(run, reader, trained, TRAINED_COLUMNS):
        yield policy_tokens(row, arrays[row["id"]])


def policy_tokens(row: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> TrainedTokens:
    """The policy tokens of a stored row with ``TRAINED_COLUMNS``."""
    positions = np.flatnonzero(np.asarray(row["kinds"]) == SegmentKind.POLICY)
    return TrainedTokens(
        trajectory_id=row["id"],
        positions=positions,
        turns=np.asarray(row["turn_index"], dtype=np.int64)[positions],
        token_ids=np.asarray(row["token_ids"], dtype=np.int64)[positions],
        rollout_logprobs=np.asarray(row["logprobs"], dtype=np.float64)[positions],
        arrays=arrays,
    )


Signal = Literal["loss", "mismatch", "entropy", "clipped"]
Level = Literal["token", "turn", "trajectory"]
Decode = Callable[[Sequence[int]], str]


LOGGED: Mapping[Signal, tuple[str, ...]] = {
    "loss": ("policy/loss",),
    "mismatch": ("mismatch/logp_abs/mean",),
    "entropy": ("policy/entropy",),
    "clipped": ("policy/clip_frac_low", "policy/clip_frac_high"),
}
"""The metrics whose sum a signal's parts come to."""

_LAST_PASS = "policy/loss_last_pass"
"""Logged in place of the loss where a step passes over its batch several times."""

CONTEXT = 8
"""Tokens of the same turn on each side of a shown token."""
_SHOWN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class BlameRow:
    """One token, turn or trajectory.

    Args:
        id: the trajectory's.
        turn: the turn's index; None for a trajectory.
        token: the token's place among all tokens of the trajectory; None but for a token.
        value: its part of the total, in the metric's unit.
        share: |value| of the sum of all |values| at this level.
        text: the token, or the beginning of the turn.
        before, after: the text around a token.
    """

    id: str
    turn: int | None
    token: int | None
    value: float
    share: float = 0.0
    text: str = ""
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Blame:
    """Who carries a number, the largest first.

    Args:
        signal, level: as asked for.
        total: the sum of all parts.
        logged: the metric of the step; None where it was not logged.
        num_tokens: trained tokens.
        rows: those with the largest absolute parts.
    """

    signal: Signal
    level: Level
    total: float
    logged: float | None
    num_tokens: int
    rows: tuple[BlameRow, ...]


def logged_value(metrics: Mapping[str, Any], signal: Signal) -> float | None:
    """The number of a signal in a step's row of ``metrics.jsonl``; None where it has none."""
    if signal == "loss" and metrics.get(_LAST_PASS) is not None:
        return float(metrics[_LAST_PASS])
    values = [metrics[name] for name in LOGGED[signal] if metrics.get(name) is not None]
    return float(sum(values)) if len(values) == len(LOGGED[signal]) else None


def blame(
    trained: Iterable[TrainedTokens],
    signal: Signal,
    level: Level,
    *,
    logged: float | None = None,
    decode: Decode | None = None,
    limit: int = 100,
) -> Blame:
    """Ranks what carries a step's number; holds one trajectory and the rows in memory.

    Args:
        trained: the step's trajectories.
        signal: ``loss`` is Σ loss_weight · token_loss; ``mismatch`` the mean of |trainer's less
            sampler's logprob|; ``entropy`` the mean entropy; ``clipped`` the share of clipped
            tokens.
        level: what a row is.
        logged: the metric's value (``logged_value``).
        decode: ids to text; None leaves texts empty.
        limit: the most rows.

    Raises:
        DataError: signal or level is unknown, or an annotation lacks a column that it needs.
    """
    for name, value, known in (("signal", signal, Signal), ("level", level, Level)):
        if value not in get_args(known):
            raise DataError(
                f"blame: {name} must be one of {', '.join(get_args(known))}, got {value!r}"
            )
    ranking = _Ranking(limit)
    total = 0.0
    count = 0
    for own in trained:
        if not own.trained.any():
            # as those of a group that was left out
            continue
        values, mask = _parts(own, signal)
        total += float(values.sum())
        count += int(mask.sum())
        ranking.add(own, values, level)
    scale = 1.0 if signal == "loss" or not count else 1.0 / count
    return Blame(signal, level, total * scale, logged, count, ranking.rows(scale, decode))


def _parts(own: TrainedTokens, signal: Signal) -> tuple[F64, Bools]:
    """``[P]`` each token's part, 0 where it is not trained, and ``[P]`` whether it is."""
    mask = own.trained
    if signal == "loss":
        weight = own.column("loss_weight", "tokens")
        part = weight * own.column("token_loss", "tokens")
    elif signal == "mismatch":
        part = np.abs(own.column("old_logprobs", "tokens") - own.rollout_logprobs)
    elif signal == "entropy":
        part = own.column("entropy", "full")
    else:
        part = (own.column("clipped", "tokens") != 0).astype(np.float64)
    return np.where(mask, part, 0.0), mask


_Around = tuple[list[int], list[int], list[int]]
"""The ids that are shown before, in and after what a row is of."""


class _Ranking:
    """Keeps the largest parts, and the sum of all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # the size of each part, its row, and the ids of its texts; the largest first
        self._kept: list[tuple[float, BlameRow, _Around]] = []
        self._absolute = 0.0

    def add(self, own: TrainedTokens, values: F64, level: Level) -> None:
        if level == "token":
            units = np.arange(values.size)
            sums = values
        elif level == "turn":
            units = np.unique(own.turns)
            sums = np.bincount(own.turns, weights=values)[units].astype(np.float64)
        else:
            units = np.zeros(1, dtype=np.int64)
            sums = np.array([values.sum()])
        sizes = np.abs(sums)
        self._absolute += float(sizes.sum())
        largest = np.argsort(-sizes, kind="stable")[: self._limit]
        least = self._kept[-1][0] if len(self._kept) == self._limit else 0.0
        for place in largest[sizes[largest] > least].tolist():
            row, around = _row(own, level, int(units[place]), float(sums[place]))
            self._kept.append((float(sizes[place]), row, around))
        # The sort is stable: among equals the first that came stays.
        self._kept.sort(key=itemgetter(0), reverse=True)
        del self._kept[self._limit :]

    def rows(self, scale: float, decode: Decode | None) -> tuple[BlameRow, ...]:
        found = []
        for size, row, around in self._kept:
            before, text, after = (
                decode(ids) if decode is not None and ids else "" for ids in around
            )
            value = row.value * scale
            share = size / self._absolute
            own = replace(
                row, value=value, share=share, text=text, before=before, after=after
            )
            found.append(own)
        return tuple(found)


def _row(
    own: TrainedTokens, level: Level, unit: int, value: float
) -> tuple[BlameRow, _Around]:
    """One row before it is scaled, and the ids of its texts."""
    ids = own.token_ids
    if level == "trajectory":
        return BlameRow(own.trajectory_id, None, None, value), ([], [], [])
    if level == "turn":
        shown = ids[own.turns == unit][:_SHOWN_TOKENS].tolist()
        return BlameRow(own.trajectory_id, unit, None, value), ([], shown, [])
    turn = int(own.turns[unit])
    start, end = np.searchsorted(own.turns, (turn, turn + 1)).tolist()
    around = (
        ids[max(start, unit - CONTEXT) : unit].tolist(),
        [int(ids[unit])],
        ids[unit + 1 : min(end, unit + 1 + CONTEXT)].tolist(),
    )
    return BlameRow(own.trajectory_id, turn, int(own.positions[unit]), value), around
