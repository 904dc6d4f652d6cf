"""Sample weights by hand: three samples, of which the last two are one trajectory's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import make_algorithm
from agentrl.algorithms.functions.reductions import constant, token_mean, trajectory_mean
from tests.algorithms.made import counts_of

THREE = counts_of([2, 3, 5], [0, 1, 1])


def test_token_mean_is_one_over_all_tokens() -> None:
    assert token_mean(THREE).tolist() == [0.1, 0.1, 0.1]


def test_trajectory_mean_counts_a_trajectory_once_over_all_its_samples() -> None:
    # J = 2, n_0 = 2, n_1 = 3 + 5
    assert trajectory_mean(THREE).tolist() == [1 / 4, 1 / 16, 1 / 16]


def test_constant_divides_by_trajectories_and_the_given_length() -> None:
    # J = 2, C = 10
    assert constant(THREE, tokens=10).tolist() == [0.05, 0.05, 0.05]


def test_a_trajectory_without_trained_tokens_does_not_count() -> None:
    untrained = counts_of([4, 0], [0, 1])
    assert trajectory_mean(untrained).tolist() == [1 / 4, 0.0]
    assert constant(untrained, tokens=10).tolist() == [0.1, 0.1]


@pytest.mark.parametrize("reduction", ["token_mean", "trajectory_mean", "constant"])
def test_nothing_trained_weighs_nothing(reduction: str) -> None:
    settings = {"reduction": reduction, "constant_tokens": 8}
    weights = make_algorithm("grpo", settings).reduction(counts_of([0, 0], [0, 1]))
    assert weights.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reduction", ["token_mean", "trajectory_mean", "constant"])
def test_a_weight_is_as_if_the_trajectory_were_there_that_often(reduction: str) -> None:
    reduce = make_algorithm(
        "grpo", {"reduction": reduction, "constant_tokens": 8}
    ).reduction
    weighed = reduce(counts_of([2, 3, 5, 4], [0, 1, 1, 2], [3.0, 1.0, 1.0, 0.0]))
    copied = reduce(counts_of([2, 2, 2, 3, 5], [0, 3, 4, 1, 1]))
    expected = [copied[:3].sum(), copied[3], copied[4], 0.0]
    assert weighed.tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("reduction", ["token_mean", "trajectory_mean"])
def test_the_weights_of_all_tokens_add_up_to_one(reduction: str) -> None:
    weights = make_algorithm("grpo", {"reduction": reduction}).reduction(THREE)
    assert float((weights * THREE.tokens).sum()) == pytest.approx(1.0, abs=1e-15)


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    pieces=st.lists(st.integers(1, 10), min_size=12, max_size=12),
    reduction=st.sampled_from(["token_mean", "trajectory_mean", "constant"]),
)
def test_a_trajectory_counts_once_however_many_samples_it_is(
    tokens: list[int], pieces: list[int], reduction: str
) -> None:
    reduce = make_algorithm(
        "grpo", {"reduction": reduction, "constant_tokens": 64}
    ).reduction
    rows = list(range(len(tokens)))
    whole = reduce(counts_of(tokens, rows)) * np.array(tokens)
    split = [
        (row, size.size)
        for row, number in enumerate(tokens)
        for size in np.array_split(np.arange(number), min(pieces[row], number))
    ]
    owners, sizes = [row for row, _ in split], [size for _, size in split]
    parts = reduce(counts_of(sizes, owners)) * np.array(sizes)
    np.testing.assert_allclose(np.bincount(owners, weights=parts), whole, rtol=1e-9)
