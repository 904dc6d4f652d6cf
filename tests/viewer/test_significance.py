"""Significance: values worked by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import false_discovery_control, fisher_exact

from agentrl.viewer.analysis.significance import (
    design_effect,
    fisher_p,
    log_odds,
    proportion_z,
    q_values,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    "table", [(0, 20, 7, 20), (3, 10, 3, 30), (1, 5, 0, 5), (40, 80, 20, 90)]
)
def test_fishers_test_is_scipys(table: tuple[int, int, int, int]) -> None:
    a, num_a, b, num_b = table

    (p,) = fisher_p(*(ints(value) for value in table))

    assert p == pytest.approx(
        fisher_exact([[a, num_a - a], [b, num_b - b]]).pvalue, rel=1e-6
    )


def test_q_values_are_scipys() -> None:
    p = np.array([0.04, 0.001, 0.2, 0.01])

    assert q_values(p, 4) == pytest.approx(false_discovery_control(p, method="bh"))


def test_tests_that_are_not_shown_count() -> None:
    assert q_values(np.array([0.001]), 50) == pytest.approx([0.05])


def test_log_odds_shrink_to_the_pooled_frequency() -> None:
    # 1 of 2 against 0 of 2: pooled (1 + .5) / 5 = .3, worth 10 trajectories a side
    change, z = log_odds(*(np.array([v]) for v in (1.0, 2.0, 0.0, 2.0)))

    assert change == pytest.approx([np.log(3 / 9) - np.log(4 / 8)])
    assert z == pytest.approx(change / np.sqrt(1 / 3 + 1 / 9 + 1 / 4 + 1 / 8))


def test_the_two_proportion_test() -> None:
    # 10 of 100 against 30 of 100: pooled .2, standard error sqrt(.2 * .8 * .02)
    z = proportion_z(ints(10), 100, ints(30), 100)

    assert z == pytest.approx([0.2 / np.sqrt(0.0032)])


def test_tasks_whose_rollouts_agree_count_once() -> None:
    # four tasks of 8: two say it always, two never
    found, sizes = ints(8, 8, 0, 0), ints(8, 8, 8, 8)

    effect = design_effect(found, sizes, np.zeros(4, dtype=bool))

    assert effect == pytest.approx(4 * 16 * (4 / 3) / (32 * 0.25))  # 8 but for 4/3


def test_independent_trajectories_count_each() -> None:
    assert design_effect(ints(4, 4, 4, 4), ints(8, 8, 8, 8), np.zeros(4, dtype=bool)) == 1.0
