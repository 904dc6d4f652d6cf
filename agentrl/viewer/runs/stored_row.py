"""Stored row: one trajectory as it lies on disk, with its JSON read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.store import Annotation, TokenArrays
from agentrl.store.json_text import from_json
from agentrl.types import SegmentKind


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
        turns: list[dict[str, Any]] = from_json(self.columns["turns"])
        return turns

    def json(self, column: str) -> Any:
        """The value of a JSON column; None where the row lacks it."""
        text = self.columns.get(column)
        return None if text is None else from_json(text)

    @cached_property
    def sequences(self) -> npt.NDArray[np.int32]:
        """The token sequence of each turn, counted from 0: a turn goes on with its parent's where
        it is the parent's first child.
        """
        found: list[int] = []
        ends: dict[int, int] = {}
        begun = 0
        for turn in self.turns:
            sequence = turn.get("sequence")
            if sequence is None:
                sequence = ends.pop(turn["parent"], begun)
            begun = max(begun, sequence + 1)
            ends[turn["index"]] = sequence
            found.append(sequence)
        return np.array(found, dtype=np.int32)

    @cached_property
    def policy_positions(self) -> npt.NDArray[np.int64]:
        """``[P]`` positions of the POLICY tokens, to which annotations have an entry each."""
        return np.flatnonzero(self.arrays.kinds == SegmentKind.POLICY)

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

    def positions(self, path: Sequence[int]) -> npt.NDArray[np.int64]:
        """The positions of the tokens of some turns, turn after turn."""
        own = [np.flatnonzero(self.arrays.turn_index == turn) for turn in path]
        return np.concatenate([np.zeros(0, np.int64), *own])
