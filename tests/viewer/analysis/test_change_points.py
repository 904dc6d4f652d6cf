"""Change points: the step of a fault is exact, and noise, learning and spikes of noise are none."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl.metrics.changes import SHARE, Gauge
from agentrl.types.arrays import F64
from agentrl.viewer.analysis.change_points import MOST_STEPS, change_points, level_onset

RISE = Gauge(SHARE)


def noise(seed: int, size: int, sigma: float = 0.03) -> F64:
    return np.random.default_rng(seed).normal(0.2, sigma, size)


@pytest.mark.parametrize("onset", [3, 4, 11, 25, 38])
@pytest.mark.parametrize("seed", range(5))
def test_the_onset_of_a_step_is_exact(seed: int, onset: int) -> None:
    values = noise(seed, 40)
    values[onset:] += 0.5

    (found,) = change_points(values, RISE)

    assert (found.place, found.lasts) == (onset, True)
    assert found.before == pytest.approx(0.2, abs=0.06)
    assert found.after == pytest.approx(0.7, abs=0.06)


def test_its_size_is_the_lesser_of_what_matters_and_of_noise() -> None:
    values = np.repeat([0.0, 1.0], 20)

    (clear,) = change_points(values, Gauge(0.5))
    (noisy,) = change_points(values, Gauge(0.5), noise=0.2)

    assert clear.size == 1.0 / 0.5
    # of two medians of five, each with 1.2533 times the error of a mean
    assert noisy.size == pytest.approx(1.0 / (5.0 * 1.2533 * 0.2 * np.sqrt(2.0 / 5.0)))
    assert change_points(values, Gauge(0.5), noise=0.26) == []


@pytest.mark.parametrize("seed", range(200))
def test_noise_and_learning_are_no_change(seed: int) -> None:
    for trend in (0.0, 0.8, -0.8):
        assert (
            change_points(noise(seed, 60) + np.linspace(0.0, trend, 60), Gauge(0.1, 0))
            == []
        )


def test_a_ramp_without_noise_is_no_change() -> None:
    assert change_points(np.linspace(0.0, 3.0, 30), Gauge(0.1, 0)) == []
    learnt = 1.0 / (1.0 + np.exp(-(np.arange(40.0) - 20.0) / 2.0))
    assert change_points(learnt, Gauge(SHARE, 0)) == []


def test_a_single_step_stands_out() -> None:
    values = noise(0, 30)
    values[17] = 3.0

    (found,) = change_points(values, RISE)

    assert (found.place, found.lasts, found.after) == (17, False, 3.0)


def test_what_is_for_the_better_or_too_small_is_none() -> None:
    fallen = np.repeat([0.9, 0.1], 20)
    assert change_points(fallen, RISE) == []
    assert len(change_points(fallen, Gauge(SHARE, -1))) == 1
    # far beyond its noise, and of no importance
    assert change_points(np.repeat([1e-7, 1e-5], 20), Gauge(0.02)) == []


def test_factors_are_compared_above_their_floor() -> None:
    times = Gauge(3.0, 1, 0.01)
    (found,) = change_points(np.repeat([1.0, 9.0], 10), times)
    assert found.size == pytest.approx(2.0, abs=0.01)
    assert change_points(np.repeat([1e-5, 1e-3], 10), times) == []


def test_a_factor_of_1_asks_for_any_change_for_the_worse() -> None:
    with np.errstate(all="raise"):
        found = Gauge(1.0, -1, 0.1).worth(np.array([-0.01, 0.0, 0.01]))
    assert found[0] > 1.0
    assert found[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", range(5))
def test_too_few_values_say_nothing(size: int) -> None:
    assert change_points(np.arange(size) * 9.0, RISE) == []


def test_a_share_of_known_noise_may_change_at_the_second_step() -> None:
    values = np.array([0.19, *[1.0] * 9])

    (found,) = change_points(values, RISE, noise=0.05, lead=1)

    assert (found.place, found.before, found.after) == (1, 0.19, 1.0)
    assert change_points(values, RISE) == []


def test_a_million_steps_are_thinned_and_the_onset_stays_exact() -> None:
    values = noise(3, 100 * MOST_STEPS)
    values[654_321:] += 0.6

    (found,) = change_points(values, RISE)

    assert found.place == 654_321


@pytest.mark.parametrize(
    ("values", "counts", "onset"),
    [
        # by hand: of 0, 0, 3, 3 two levels leave nothing, a line 1.8 of 9
        ([0, 0, 3, 3], [1, 1, 1, 1], 2),
        ([0, 1, 2, 3], [1, 1, 1, 1], None),
        ([5, 0, 0], [1, 1, 1], 1),
        ([2, 2, 2], [1, 1, 1], None),
        ([0, 1], [1, 1], None),
        # one episode of many says little
        ([0, 9, 0, 0, 3, 3], [100, 1, 100, 100, 100, 100], 4),
        ([0, 9, 0, 0, 3, 3], [1, 100, 1, 1, 1, 1], 2),
    ],
)
def test_two_levels_begin_where_they_fit_better_than_a_line(
    values: list[float], counts: list[float], onset: int | None
) -> None:
    steps = np.arange(len(values)) + 1.0
    assert level_onset(steps, np.array(values, float), np.array(counts, float)) == onset
