"""Backoff: how long to wait before something that failed is tried again."""

from __future__ import annotations

import random


def backoff_s(attempt: int, *, first_s: float, longest_s: float) -> float:
    """Seconds before the next attempt: twice as long after each, and drawn from the upper half, so
    that many who failed together do not come back together.

    Args:
        attempt: that failed, from 0.
        first_s: longest wait after the first one.
        longest_s: longest wait of all.
    """
    # the exponent is bounded: an endless series of attempts would leave the range of floats
    longest = min(first_s * 2 ** min(attempt, 32), longest_s)
    return random.uniform(longest / 2, longest)
