"""Seeds: curves of runs that differ by their seed alone, as mean and band, and paired differences.

Axes: R runs, n steps that any of them logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from agentrl.types.arrays import F64
from agentrl.viewer.runs.metrics_table import Series, extremes, finite_list

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for a two-sided interval of 95 %, by degrees of freedom from 1; of more the last,
which is too wide for them.
"""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much more a metric is in one group of runs than in another, by pairs of equal seeds.

    Args:
        mean: over the pairs, of what each differs by on average in the steps.
        half: half of the 95 % interval of the mean (Student's t); None of one pair.
        num_pairs: how many seeds are in both groups and have the metric.
        first, last: the steps, the newest tenth of those that all pairs have.
    """

    mean: float
    half: float | None
    num_pairs: int
    first: float
    last: float


def band(runs: Sequence[Series], most: int) -> dict[str, list[float | None]]:
    """One metric of the runs of a group: at each step the mean, the least and the greatest of
    those that have it, and how many these are; thinned to about ``most`` steps.
    """
    steps = np.unique(np.concatenate([own.step for own in runs]))
    value = _table(steps, runs, "value")
    count = (~np.isnan(value)).sum(axis=0)
    mean = np.nansum(value, axis=0) / count
    kept = extremes(mean, most)
    columns = {
        "step": steps,
        "time": _mean(_table(steps, runs, "time")),
        "tokens": _mean(_table(steps, runs, "tokens")),
        "value": mean,
        "low": np.fmin.reduce(value, axis=0),
        "high": np.fmax.reduce(value, axis=0),
        "runs": count.astype(np.float64),
    }
    return {name: finite_list(column[kept]) for name, column in columns.items()}


def _table(steps: F64, runs: Sequence[Series], column: str) -> F64:
    """``[R, n]`` a column of each run; NaN where it lacks the step."""
    table = np.full((len(runs), steps.size), np.nan)
    for row, own in zip(table, runs, strict=True):
        row[np.searchsorted(steps, own.step)] = getattr(own, column)
    return table


def _mean(table: F64) -> F64:
    count = (~np.isnan(table)).sum(axis=0)
    total = np.nansum(table, axis=0)
    mean: F64 = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


def paired_difference(
    group: Mapping[Any, Series], other: Mapping[Any, Series]
) -> PairedDifference | None:
    """What ``other`` has more than ``group``; None where no seed of both has a step in common.

    Args:
        group, other: the metric by seed.
    """
    pairs = [(group[seed], other[seed]) for seed in group if seed in other]
    pairs = [(a, b) for a, b in pairs if a.step.size and b.step.size]
    if not pairs:
        return None
    common = reduce(np.intersect1d, [own.step for pair in pairs for own in pair])
    if not common.size:
        return None
    steps = common[-max(1, common.size // 10) :]
    differences = np.array(
        [float((_at(b, steps) - _at(a, steps)).mean()) for a, b in pairs]
    )
    half = None
    if (num := differences.size) > 1:
        t = _T_95[min(num - 1, len(_T_95)) - 1]
        half = t * float(differences.std(ddof=1)) / num**0.5
    return PairedDifference(
        float(differences.mean()), half, num, float(steps[0]), float(steps[-1])
    )


def _at(own: Series, steps: F64) -> F64:
    return own.value[np.searchsorted(own.step, steps)]
