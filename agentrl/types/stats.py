"""Statistics: sums, counts, minima and maxima that merge exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentrl.types.arrays import Floats


@dataclass(frozen=True, slots=True)
class Stat:
    """A mergeable statistic: ``sum`` over ``count`` observations, and their extremes."""

    sum: float
    count: float
    min: float = float("inf")
    max: float = float("-inf")

    @property
    def mean(self) -> float:
        """The mean; NaN without observations."""
        return self.sum / self.count if self.count else float("nan")

    def __add__(self, other: Stat) -> Stat:
        return Stat(
            self.sum + other.sum,
            self.count + other.count,
            min(self.min, other.min),
            max(self.max, other.max),
        )

    @classmethod
    def of(cls, values: Iterable[float]) -> Stat:
        """The statistic of the given values."""
        items = [float(value) for value in values]
        return cls(
            sum(items),
            len(items),
            min(items, default=float("inf")),
            max(items, default=float("-inf")),
        )


class Stats(dict[str, Stat]):
    """Named statistics; adding two merges equal names."""

    def __add__(self, other: Mapping[str, Stat]) -> Stats:
        merged = Stats(self)
        for name, stat in other.items():
            merged[name] = merged[name] + stat if name in merged else stat
        return merged

    def means(self) -> dict[str, float]:
        """The mean of each statistic that has observations."""
        return {name: stat.mean for name, stat in self.items() if stat.count}


class UpdateStats(Stats):
    """Statistics of an optimizer step, with numbers of its tokens.

    Args:
        stats: by name.
        columns: ``[T]`` by name, in the order of the shard, float32, or float64 of a float64 model;
            0 for tokens not trained.
    """

    def __init__(self, stats: Mapping[str, Stat], columns: Mapping[str, Floats]) -> None:
        super().__init__(stats)
        self.columns = columns

    def __reduce__(self) -> tuple[type[UpdateStats], tuple[object, ...]]:
        return type(self), (dict(self), self.columns)
