"""Interleaved: sides of a comparison in turn, by processor time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["in_turn", "median_ratio"]


def in_turn(
    sides: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """The processor seconds of each side in each round, all of this process's threads; one round
    before is not counted. Every second round goes through the sides in the other order.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else reversed(list(sides)):
            begin = time.process_time()
            sides[name]()
            if number:
                seconds[name].append(time.process_time() - begin)
        print(f"   round {number} of {rounds}", flush=True)
    return seconds


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the ratios of equal rounds."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
