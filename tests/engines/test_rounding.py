"""The bound of the engines' logprobs lies between what float32 can give and what a fault makes."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.engines.test_agreement import MODELS
from tests.engines.test_any_decoder import FAMILIES
from tests.engines.tiny import ROUNDING, all_logprobs, make_model, random_ids

UNIT_ROUNDOFF = 2.0**-24  # of float32


@pytest.mark.parametrize("name", [*MODELS, *FAMILIES])
def test_it_is_four_times_what_the_last_bit_moves_and_a_hundredth_of_what_a_wrong_id_moves(
    name,
) -> None:
    # all in float64, so that no processor's rounding takes part
    exact = make_model(name.split("-")[0], **({**MODELS, **FAMILIES}[name])).exact
    moved, random = copy.deepcopy(exact), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in moved.parameters():
            weight.mul_(
                1
                + UNIT_ROUNDOFF
                * (2 * torch.rand(weight.shape, generator=random, dtype=weight.dtype) - 1)
            )
    for seed in range(4):
        ids = random_ids(seed, 100)
        logprobs = all_logprobs(exact, ids)
        sampled = logprobs.exp().multinomial(4, generator=random)
        wrong = ids.copy()
        wrong[50] = (wrong[50] + 1) % 61

        last_bit = (all_logprobs(moved, ids) - logprobs).gather(1, sampled).abs()
        fault = (all_logprobs(exact, wrong) - logprobs).gather(1, sampled).abs()

        assert 4 * last_bit.max() <= ROUNDING
        assert fault[51:59].max() >= 100 * ROUNDING
