"""Paired test: compares two policies on the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["mcnemar_p_value"]


def mcnemar_p_value(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Exact two-sided McNemar test of two policies on the same tasks: the chance of a split at
    least as uneven among the tasks on which they differ, were both equally good.

    Raises:
        ValueError: the two are not about the same number of tasks.
    """
    if len(before) != len(after):
        raise ValueError(
            f"a paired test needs the same tasks twice, got {len(before)} and {len(after)}"
        )
    gained = sum(not old and new for old, new in zip(before, after, strict=True))
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    differing = gained + lost
    tail = sum(math.comb(differing, i) for i in range(min(gained, lost) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**differing)))
