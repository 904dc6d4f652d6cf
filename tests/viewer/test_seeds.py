"""Runs of several seeds: mean and band at each step, and differences by pairs."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.viewer.runs.metrics_table import Series
from agentrl.viewer.runs.seeds import band, paired_difference

CURVES = st.dictionaries(st.integers(0, 8), st.floats(-1e3, 1e3), max_size=6)


def series(points: dict[int, float]) -> Series:
    steps = np.array(sorted(points), dtype=np.float64)
    values = np.array([points[int(step)] for step in steps])
    return Series(steps, steps * 2, steps * np.nan, values, steps.size)


@given(st.lists(CURVES.filter(bool), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_band_is_of_the_runs_that_have_the_step(runs: list[dict[int, float]]) -> None:
    found = band([series(points) for points in runs], 1000)

    assert found["step"] == sorted({step for points in runs for step in points})
    for place, step in enumerate(found["step"]):
        values = [points[int(step or 0)] for points in runs if step in points]
        assert found["runs"][place] == len(values)
        assert found["value"][place] == pytest.approx(statistics.fmean(values))
        assert (found["low"][place], found["high"][place]) == (min(values), max(values))
        assert found["time"][place] == 2 * (step or 0)
        assert found["tokens"][place] is None


def test_differences_are_of_pairs_of_one_seed_over_the_newest_tenth_of_common_steps() -> (
    None
):
    steps = range(40)
    group = {seed: series({step: float(seed) for step in steps}) for seed in (0, 1, 2, 7)}
    gains = {0: 1.0, 1: 2.0, 2: 6.0, 9: 100.0}
    other = {
        seed: series({step: seed + gain + (step < 36) * 50 for step in range(45)})
        for seed, gain in gains.items()
    }

    found = paired_difference(group, other)

    assert found is not None
    assert (found.mean, found.num_pairs, found.first, found.last) == (3.0, 3, 36, 39)
    # Student's t of 2 degrees of freedom, and the standard error of 1, 2 and 6
    assert found.half == pytest.approx(4.303 * math.sqrt(7) / math.sqrt(3))


def test_one_pair_has_no_interval_and_none_no_difference() -> None:
    one = {0: series({1: 1.0})}
    found = paired_difference(one, {0: series({1: 4.0})})
    assert found is not None
    assert (found.mean, found.half, found.num_pairs) == (3.0, None, 1)
    assert paired_difference(one, {1: series({1: 4.0})}) is None
    assert paired_difference(one, {0: series({2: 4.0})}) is None
    assert paired_difference(one, {0: series({})}) is None
