"""Preference pairs made of the trajectories that a run stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.store import RunDirectory, TrajectoryReader, TrajectorySummary


def pairs_of_run(
    run: str,
    *,
    min_gap: float = 0.0,
    margin: bool = False,
    begin: float = 0.0,
    end: float = 1.0,
) -> StoredPairs:
    """Of each group that a run played for training, the best and the worst episode by reward, with
    their own tokens.

    A data set for ``algorithm: reward_model``:
    ``data: {train: "agentrl.run.data.stored_pairs:pairs_of_run",
    args: {run:
    runs/code}}``. Failed episodes and groups whose rewards are all equal are passed over.

    Args:
        run: the run directory, from the current folder.
        min_gap: pass over pairs whose rewards differ by less.
        margin: give each pair the difference of its rewards as its margin.
        begin, end: the part of the groups to take, in order of their draws, as shares from 0 to 1;
            ``end=0.9`` in training and ``begin=0.9`` in evaluation hold a tenth out.

    Raises:
        ConfigError: ``begin`` and ``end`` are no part of the groups.
        DataError: no group has two episodes that differ.
        StoreError: there is no run, or a file of it is damaged.
    """
    if not 0.0 <= begin < end <= 1.0:
        raise ConfigError(
            f"data.args: begin and end must be shares, 0 <= begin < end <= 1, got {begin} and {end}"
        )
    reader = TrajectoryReader(RunDirectory.open(run))
    chosen = list(_best_and_worst(reader, min_gap))
    part = chosen[round(begin * len(chosen)) : round(end * len(chosen))]
    if not part:
        raise DataError(
            f"{run} has no group for training with two episodes whose rewards differ by more than "
            f"{min_gap:g} "
            f"between shares {begin:g} and {end:g} of its groups; widen them, or lower min_gap"
        )
    return StoredPairs(reader, part, margin)


@dataclass(frozen=True)
class StoredPairs:
    """Pairs of a run, read where they are asked for.

    Args:
        reader: of the run.
        pairs: ids of the better and the worse episode, and how far apart their rewards are.
        margin: whether that is each pair's margin.
    """

    reader: TrajectoryReader
    pairs: Sequence[tuple[str, str, float]]
    margin: bool

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        best, worst, gap = self.pairs[index]
        better, other = self.reader.get_many((best, worst))
        return {
            "chosen": better.trajectory,
            "rejected": other.trajectory,
            "margin": gap if self.margin else 0.0,
        }


def _best_and_worst(
    reader: TrajectoryReader, min_gap: float
) -> Iterator[tuple[str, str, float]]:
    """Ids of the best and the worst finished episode of each group, and how far apart they are."""
    played = [
        entry for entry in reader.summaries(purpose="train") if entry.reward is not None
    ]
    played.sort(key=lambda entry: entry.group_index)
    for _, siblings in groupby(played, key=lambda entry: entry.group_index):
        ordered = sorted(siblings, key=_by_reward)
        gap = float(ordered[-1].reward or 0.0) - float(ordered[0].reward or 0.0)
        if gap > 0.0 and gap >= min_gap:
            yield ordered[-1].id, ordered[0].id, gap


def _by_reward(entry: TrajectorySummary) -> tuple[float, int]:
    return entry.reward or 0.0, -entry.rollout_index
