"""Index facets: how often the values of fields occur, counted in memory.

Words are an array of codes, numbers an array of floats; both are indexed by the trajectory's key.
Used under the index's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.types.arrays import I64
from agentrl.viewer.index.fields import Field, split

_BINS = 20
_MOST_VALUES = 50


class FacetColumns:
    """The fields of an index that are counted."""

    def __init__(self, fields: Iterable[Field] = ()) -> None:
        self.fields = {field.name: field for field in fields}
        self._present = np.zeros(0, dtype=bool)
        self._words: dict[str, dict[str | None, int]] = {
            name: {} for name, field in self.fields.items() if not field.is_number
        }
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(0, np.int32 if name in self._words else np.float64)
            for name in self.fields
        }

    def put(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add or replace rows: the key, then the values of ``fields``."""
        columns = list(zip(*rows, strict=True))
        if not columns:
            return
        keys = np.array(columns[0], dtype=np.int64)
        self._grow(int(keys.max()) + 1)
        self._present[keys] = True
        for name, values in zip(self.fields, columns[1:], strict=True):
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

    def count(self, keys: I64, names: Sequence[str]) -> dict[str, Any]:
        """The most frequent values and the histograms of the rows with these keys."""
        words = [name for name in names if name in self._words]
        return {
            "columns": {name: self._counts(name, keys) for name in words},
            "histograms": {
                n: self._histogram(n, keys) for n in names if n not in self._words
            },
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
        is_list = self.fields[name].kind == "list"
        for word, count in zip(words, counts, strict=True):
            for value in split(word) if is_list else [word or ""]:
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
        if self.fields[name].kind == "integer":
            width = max(1, int(np.ceil((high - low + 1) / _BINS)))
            edges = np.arange(low, high + 1 + width, width)
            edges = edges[: int((high - low) // width) + 2]
        else:
            end = high if high > low else low + 1
            # By halves, since the distance of two numbers may be beyond any.
            edges = 2 * np.linspace(low / 2, end / 2, _BINS + 1)
        counts, _ = np.histogram(values, edges)
        return {"edges": edges.tolist(), "counts": counts.tolist()}
