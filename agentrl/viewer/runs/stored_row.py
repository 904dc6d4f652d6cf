"""Stored row: one trajectory as it lies on disk, with its JSON read.

Axes: N tokens, A those of them that have alternatives, k alternatives to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentrl.errors import StoreError
from agentrl.store import Annotation, TokenArrays
from agentrl.store.json_text import from_json
from agentrl.store.trajectories.codec import JSON_FIELDS, SegmentReader
from agentrl.types import SegmentKind
from agentrl.types.arrays import F32, I32, I64
from agentrl.types.segment import ALTERNATIVE_IDS

JSON_COLUMNS = ("task", "turns", *JSON_FIELDS)
"""Columns whose text is JSON."""


class StoredAlternatives(NamedTuple):
    """The likeliest tokens beside sampled ones.

    Args:
        positions: ``[A]`` of the sampled tokens.
        ids: ``[A, k]``; -1 where a token has fewer.
        logprobs: ``[A, k]``, falling.
    """

    positions: I64
    ids: I32
    logprobs: F32


@dataclass(frozen=True, eq=False)
class StoredRow:
    """One trajectory.

    Args:
        columns: its columns but for the arrays; JSON columns as text.
        arrays: by token, N in all.
        annotations: what was learned of it later, the oldest first.
    """

    columns: Mapping[str, Any]
    arrays: TokenArrays
    annotations: Sequence[Annotation]

    @cached_property
    def turns(self) -> list[dict[str, Any]]:
        """The turns' records (docs/trajectory-format.md)."""
        turns: list[dict[str, Any]] = self.json("turns")
        return turns

    def json(self, column: str) -> Any:
        """The value of a JSON column.

        Raises:
            StoreError: it is no JSON.
        """
        try:
            return from_json(self.columns[column])
        except ValueError as error:
            name = self.columns["id"]
            raise StoreError(
                f"the column {column!r} of {name!r} is no JSON: {error}"
            ) from error

    @cached_property
    def sequences(self) -> I32:
        """The token sequence of each turn, counted from 0."""
        return np.array([turn["sequence"] for turn in self.turns], dtype=np.int32)

    @cached_property
    def policy_positions(self) -> I64:
        """``[P]`` positions of the POLICY tokens, to which annotations have an entry each."""
        return np.flatnonzero(self.arrays.kinds == SegmentKind.POLICY)

    @cached_property
    def alternatives(self) -> StoredAlternatives | None:
        """What the engine gave beside sampled tokens; None where it gave nothing."""
        layouts = [
            one for turn in self.turns for one in (*turn["context"], *turn["completion"])
        ]
        if not any(
            one["num_tokens"] and ALTERNATIVE_IDS in one.get("side", ()) for one in layouts
        ):
            return None
        reader = SegmentReader(self.arrays)
        parts = []
        end = 0
        for segment in map(reader.segment, layouts):
            end += len(segment)
            if len(segment) and segment.alternatives is not None:
                parts.append((np.arange(end - len(segment), end), *segment.alternatives))
        width = max(ids.shape[1] for _, ids, _ in parts)
        return StoredAlternatives(
            np.concatenate([positions for positions, _, _ in parts]),
            np.concatenate([_widened(ids, width, -1) for _, ids, _ in parts]),
            np.concatenate(
                [_widened(logprobs, width, -np.inf) for _, _, logprobs in parts]
            ),
        )

    def without_side(self) -> StoredRow:
        """The row without its further arrays by token."""
        arrays = replace(self.arrays, side=b"")
        stripped = StoredRow(self.columns, arrays, self.annotations)
        for turn in stripped.turns:
            for layout in (*turn["context"], *turn["completion"]):
                layout.pop("side", None)
        return stripped

    def paths(self) -> list[list[int]]:
        """For each leaf turn, the turns of its sequence, the root first."""
        parents = {turn["index"]: turn["parent"] for turn in self.turns}
        inner = set(parents.values())
        paths = []
        for leaf in (turn for turn in parents if turn not in inner):
            path = [leaf]
            while (parent := parents[path[-1]]) is not None:
                path.append(parent)
            paths.append(path[::-1])
        return paths

    def positions(self, path: Sequence[int]) -> I64:
        """The positions of the tokens of some turns, turn after turn."""
        order = np.argsort(self.arrays.turn_index, kind="stable")
        turns = self.arrays.turn_index[order]
        bounds = zip(
            np.searchsorted(turns, path), np.searchsorted(turns, path, "right"), strict=True
        )
        return np.concatenate(
            [np.zeros(0, np.int64), *(order[slice(*own)] for own in bounds)]
        )


def _widened(array: npt.NDArray[Any], width: int, empty: float) -> npt.NDArray[Any]:
    """``[n, width]`` of ``[n, k]``."""
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=empty)
