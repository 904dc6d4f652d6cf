"""Trained tokens: a step's policy tokens with what the step learned of each.

Axes: N all tokens of a trajectory, P its policy tokens, in turn order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.store import Annotation, RunDirectory, TrajectoryReader, TrajectorySummary
from agentrl.store.annotations.annotation import LOSS_REASONS
from agentrl.types import SegmentKind
from agentrl.viewer.analysis.stored_rows import stored_rows

_COUNTED = [LOSS_REASONS.index(reason) for reason in ("trained", "off_policy")]

COLUMNS = ("token_ids", "kinds", "turn_index", "logprobs")

F64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    positions: Ints
    turns: Ints
    token_ids: Ints
    rollout_logprobs: F64
    arrays: Mapping[str, npt.NDArray[np.generic]]

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
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
    summaries: Iterable[TrajectorySummary],
    annotations: Iterable[Annotation],
) -> Iterator[TrainedTokens]:
    """The policy tokens of each annotated trajectory, in the order of the files.

    Args:
        run: where.
        reader: the run's.
        summaries: all trajectories that may be annotated.
        annotations: of one step and learner; of two arrays of a name the later one counts.

    Raises:
        StoreError: a file is damaged.
    """
    arrays: dict[str, dict[str, Any]] = {}
    for annotation in annotations:
        arrays.setdefault(annotation.trajectory_id, {}).update(annotation.arrays)
    trained = [summary for summary in summaries if arrays.get(summary.id)]
    for row in stored_rows(run, reader, trained, COLUMNS):
        yield policy_tokens(row, arrays[row["id"]])


def policy_tokens(
    row: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.generic]]
) -> TrainedTokens:
    """The policy tokens of a stored row with ``COLUMNS``."""
    positions = np.flatnonzero(np.asarray(row["kinds"]) == SegmentKind.POLICY)
    return TrainedTokens(
        trajectory_id=row["id"],
        positions=positions,
        turns=np.asarray(row["turn_index"], dtype=np.int64)[positions],
        token_ids=np.asarray(row["token_ids"], dtype=np.int64)[positions],
        rollout_logprobs=np.asarray(row["logprobs"], dtype=np.float64)[positions],
        arrays=arrays,
    )
