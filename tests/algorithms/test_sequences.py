"""Sums, means and maxima over sequences, by hand and by their gradients."""

from __future__ import annotations

import torch
from torch import tensor

from agentrl.algorithms.functions.token_terms import max_over, mean_over, sum_over

ROWS = tensor([7, 2, 7, 7, 2])


def test_each_token_is_given_its_own_sequences_number() -> None:
    values = tensor([1.0, 10.0, 2.0, -6.0, 30.0])
    assert sum_over(values, ROWS).tolist() == [-3.0, 40.0, -3.0, -3.0, 40.0]
    assert mean_over(values, ROWS).tolist() == [-1.0, 20.0, -1.0, -1.0, 20.0]
    assert max_over(values, ROWS).tolist() == [2.0, 30.0, 2.0, 2.0, 30.0]


def test_a_sums_gradient_reaches_every_token_of_its_sequence_alone() -> None:
    values = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    weights = tensor([1.0, 0.0, 2.0, 4.0, 0.0], dtype=torch.float64)
    (sum_over(values, ROWS) * weights).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [7.0, 0.0, 7.0, 7.0, 0.0]


def test_no_tokens_have_no_sums() -> None:
    nothing = torch.zeros(0)
    assert sum_over(nothing, torch.zeros(0, dtype=torch.int64)).shape == (0,)
