"""Drawing tokens: what each parameter keeps, and a generator that is a function of seed and
position.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.engines.torch.sampling import SamplingRows, sample, uniforms

PROBS = [0.5, 0.25, 0.15, 0.1]


def draw(uniform: float, **parameters: float) -> int:
    """The token drawn from ``PROBS`` at one uniform number."""
    dtypes = {"top_k": torch.int64}
    rows = SamplingRows(
        **{
            name: torch.tensor([[value]], dtype=dtypes.get(name, torch.float32))
            for name, value in parameters.items()
        }
    )
    ids, *_ = sample(
        torch.tensor([PROBS]).log(), torch.tensor([uniform], dtype=torch.float64), rows
    )
    return int(ids[0])


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.95, 3)]
)
def test_a_token_is_the_inverse_of_the_cumulative_distribution(uniform, token) -> None:
    assert draw(uniform) == token


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 0}, {0, 1, 2, 3}),
        ({"top_p": 0.74}, {0, 1}),  # .5 + .25 reaches .74
        ({"top_p": 0.8}, {0, 1, 2}),
        ({"top_p": 0.1}, {0}),  # the most probable one always stays
        ({"min_p": 0.29}, {0, 1, 2}),  # .29 x .5 = .145: only .1 falls below
        ({"top_p": 0.8, "top_k": 2}, {0, 1}),
    ],
)
def test_truncation_keeps_exactly_its_set(parameters, kept) -> None:
    assert {draw(u, **parameters) for u in np.linspace(0, 0.9999, 200)} == kept


def test_truncation_leaves_the_logprob_of_the_whole_softmax() -> None:
    rows = SamplingRows(top_k=torch.tensor([[1]]))
    _, logprobs, *_ = sample(
        torch.tensor([PROBS]).log(), torch.tensor([0.9], dtype=torch.float64), rows
    )
    assert float(logprobs[0]) == pytest.approx(np.log(0.5), abs=1e-6)


def test_temperature_divides_the_logits() -> None:
    # at temperature 1/2 the probabilities are squared: .25/.345 of the mass is token 0
    rows = SamplingRows(inverse_temperature=torch.tensor([[2.0]]))
    ids, logprobs, *_ = sample(
        torch.tensor([PROBS]).log(), torch.tensor([0.72], dtype=torch.float64), rows
    )
    assert int(ids[0]) == 0
    assert float(logprobs[0]) == pytest.approx(np.log(0.25 / 0.345), abs=1e-6)


def test_a_truncating_neighbour_changes_nothing() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    chance = torch.tensor([0.37, 0.37], dtype=torch.float64)
    alone = sample(logits, chance, SamplingRows())
    beside = sample(
        logits,
        chance,
        SamplingRows(top_p=torch.tensor([[1.0], [0.2]]), top_k=torch.tensor([[0], [3]])),
    )
    assert alone[0][0] == beside[0][0]
    assert alone[1][0] == beside[1][0]


def test_logits_that_are_not_finite_give_a_logprob_that_is_not() -> None:
    logits = torch.tensor([[0.0, float("nan")], [0.0, float("inf")]])
    _, logprobs, *_ = sample(
        logits, torch.tensor([0.1, 0.9], dtype=torch.float64), SamplingRows()
    )
    assert not torch.isfinite(logprobs).any()


def test_uniforms_are_a_function_of_seed_and_position_alone() -> None:
    seeds = np.array([3, 2**64 - 1, 3], dtype=np.uint64)
    together = uniforms(seeds, np.array([10, 11, 12]))
    assert together[2] == uniforms(seeds[2:], np.array([12]))[0]
    assert together[0] != together[2]


def test_uniforms_are_uniform_and_neighbouring_seeds_and_positions_unrelated() -> None:
    grid = np.stack(
        [
            uniforms(np.full(400, seed, dtype=np.uint64), np.arange(400))
            for seed in range(400)
        ]
    )
    assert 0.0 <= grid.min() < 1e-4 < 1 - 1e-4 < grid.max() < 1.0
    counts = np.histogram(grid, bins=20, range=(0, 1))[0]
    # chi-squared with 19 degrees of freedom exceeds 43.8 with probability .001
    assert ((counts - 8000.0) ** 2 / 8000.0).sum() < 43.8
    for one, other in ((grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])):
        # standard error .0025
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.01
