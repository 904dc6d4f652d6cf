"""Index columns: what the index knows of a trajectory, the fields of queries, and their counts.

A column of words is an array of codes, one of numbers an array of floats; both are indexed by the
trajectory's key. Used under the index's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agentrl.store.trajectories.columns import COLUMNS as STORED
from agentrl.store.trajectories.columns import SUMMARY_COLUMNS
from agentrl.types import Purpose, StatusKind
from agentrl.types.arrays import I64

SEPARATOR = "\x1f"
"""Stands around each entry of a list column, as in ``\\x1fpython\\x1fsearch\\x1f``."""

ColumnKind = Literal["integer", "real", "text", "list", "json"]

_KINDS: Mapping[pa.DataType, ColumnKind] = {
    pa.int32(): "integer",
    pa.int64(): "integer",
    pa.float64(): "real",
    pa.string(): "text",
    pa.list_(pa.string()): "list",
}

COLUMNS: Mapping[str, ColumnKind] = {
    name: "json" if name == "rewards" else _KINDS[STORED[name].type] for name in SUMMARY_COLUMNS
}
"""The summary columns of a shard."""

JOINED: Mapping[str, ColumnKind] = {
    "drop_reason": "text",
    "trained_step": "integer",
    "labels": "list",
}
"""What is known from elsewhere: the ledger, and the labels of notes."""

NULLABLE = frozenset({"trained_step", *(name for name in SUMMARY_COLUMNS if STORED[name].nullable)})


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the query language.

    Args:
        sql: its expression over a row of the index.
        kind: how it is compared.
        choices: all values that it may have; empty where it is open.
    """

    sql: str
    kind: Literal["number", "text", "list"]
    choices: tuple[str, ...] = ()


FIELDS: Mapping[str, Field] = {
    "id": Field("id", "text"),
    "task": Field("task_id", "text"),
    "env": Field("env", "text"),
    "stage": Field("stage", "text"),
    "label": Field("label", "text"),
    "status": Field("status", "text", get_args(StatusKind)),
    "reason": Field("status_reason", "text"),
    "purpose": Field("purpose", "text", get_args(Purpose)),
    "source": Field("data_source", "text"),
    "drop": Field("drop_reason", "text"),
    "agent": Field("agents", "list"),
    "tool": Field("tools", "list"),
    "note": Field("labels", "list"),
    "step": Field("step", "number"),
    "trained_step": Field("+trained_step", "number"),
    "reward": Field("+reward", "number"),
    "turns": Field("+num_turns", "number"),
    "calls": Field("+num_calls", "number"),
    "tool_errors": Field("+num_tool_errors", "number"),
    "tokens": Field("+num_tokens", "number"),
    "policy_tokens": Field("+num_policy_tokens", "number"),
    "version": Field("+policy_version_max", "number"),
    "group": Field("group_index", "number"),
    "rollout": Field("+rollout_index", "number"),
    "attempt": Field("+attempt", "number"),
    "group_size": Field("+group_size", "number"),
    "seconds": Field("nullif(max(ended_at - started_at, 0), 0)", "number"),
}
"""By the name in a query; besides, ``reward.NAME`` is a reward part and ``text`` is the text.

A number's ``+`` keeps SQLite from an index, whose rows lie scattered: to scan all is four times as
fast where half of them fit. Those of a step lie together.
"""

FACETS = (
    "stage",
    "env",
    "status",
    "status_reason",
    "purpose",
    "label",
    "data_source",
    "tools",
    "agents",
    "drop_reason",
    "labels",
)
"""Columns whose values are counted."""

HISTOGRAMS = (
    "step",
    "reward",
    "num_turns",
    "num_calls",
    "num_tool_errors",
    "num_tokens",
    "num_policy_tokens",
    "policy_version_max",
)
"""Columns of numbers that are counted in bins."""


def joined(values: object) -> str:
    """A list as its column holds it."""
    names = [str(value) for value in values] if isinstance(values, list | tuple) else []
    return SEPARATOR + SEPARATOR.join(names) + SEPARATOR if names else ""


def split(text: str) -> list[str]:
    """The list of such a column."""
    return text.strip(SEPARATOR).split(SEPARATOR) if text else []


_BINS = 20
_MOST_VALUES = 50


class FacetColumns:
    """The columns of an index that are counted."""

    COLUMNS = (*FACETS, *HISTOGRAMS)

    def __init__(self) -> None:
        self._present = np.zeros(0, dtype=bool)
        self._words: dict[str, dict[str, int]] = {name: {} for name in FACETS}
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(0, np.int32 if name in self._words else np.float64)
            for name in self.COLUMNS
        }

    def put(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add or replace rows: the key, then the values of ``COLUMNS``."""
        columns = list(zip(*rows, strict=True))
        if not columns:
            return
        keys = np.array(columns[0], dtype=np.int64)
        self._grow(int(keys.max()) + 1)
        self._present[keys] = True
        for name, values in zip(self.COLUMNS, columns[1:], strict=True):
            column = self._columns[name]
            if name in self._words:
                words = self._words[name]
                for word in set(values):
                    words.setdefault(word, len(words))
                values = tuple(map(words.__getitem__, values))
            column[keys] = np.array(values, column.dtype)

    def keys(self) -> I64:
        """Every key."""
        return np.flatnonzero(self._present)

    def count(self, keys: I64) -> dict[str, Any]:
        """The most frequent values and the histograms of the rows with these keys."""
        return {
            "columns": {name: self._counts(name, keys) for name in FACETS},
            "histograms": {name: self._histogram(name, keys) for name in HISTOGRAMS},
        }

    def _grow(self, size: int) -> None:
        more = size - self._present.size
        if more <= 0:
            return
        # By half again, so that a run that grows does not copy its columns at each look.
        more = max(more, self._present.size // 2)
        self._present = np.concatenate([self._present, np.zeros(more, dtype=bool)])
        for name, column in self._columns.items():
            empty = np.full(more, 0 if name in self._words else np.nan, column.dtype)
            self._columns[name] = np.concatenate([column, empty])

    def _counts(self, name: str, keys: I64) -> list[list[Any]]:
        words = list(self._words[name])
        counts = np.bincount(self._columns[name][keys], minlength=len(words)).tolist()
        found: Counter[str] = Counter()
        is_list = {**COLUMNS, **JOINED}[name] == "list"
        for word, count in zip(words, counts, strict=True):
            for value in split(word) if is_list else [word]:
                found[value] += count
        return [
            [value, count]
            for value, count in found.most_common(_MOST_VALUES)
            if count and value != ""
        ]

    def _histogram(self, name: str, keys: I64) -> dict[str, list[Any]]:
        values = self._columns[name][keys]
        values = values[np.isfinite(values)]
        if not values.size:
            return {"edges": [], "counts": []}
        low, high = float(values.min()), float(values.max())
        if COLUMNS[name] == "integer":
            width = max(1, int(np.ceil((high - low + 1) / _BINS)))
            edges = np.arange(low, high + 1 + width, width)
            edges = edges[: int((high - low) // width) + 2]
        else:
            edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        counts, _ = np.histogram(values, edges)
        return {"edges": edges.tolist(), "counts": counts.tolist()}
