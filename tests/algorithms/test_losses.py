"""Losses per token, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from agentrl.algorithms import PolicyInputs, TokenLoss, make_algorithm
from agentrl.algorithms.functions.corrections import truncated_importance
from agentrl.algorithms.functions.losses import broadcast_to_tokens
from agentrl.algorithms.functions.token_terms import capped_k3, k3
from agentrl.algorithms.settings.policy_gradient import GRPOSettings
from tests.algorithms.made import policy_inputs, token_credit


def inputs(
    ratios: list[float], advantages: list[float] | None, **columns: Tensor | None
) -> PolicyInputs:
    """Tokens whose π_old is 1/e and whose ratio to it is given."""
    old = torch.full((len(ratios),), -1.0)
    fields: dict[str, Tensor | None] = {
        "old_logprobs": old,
        "rollout_logprobs": old.clone(),
        "advantages": None if advantages is None else tensor(advantages),
    }
    logprobs = (old + tensor(ratios).log()).requires_grad_()
    return policy_inputs(logprobs, **(fields | columns))


def policy_loss(
    name: str, settings: dict[str, Any] | None = None
) -> Callable[[PolicyInputs], TokenLoss]:
    loss = make_algorithm(name, settings).policy_loss
    assert loss is not None
    return loss


def test_the_surrogate_takes_the_worse_of_ratio_and_clipped_ratio() -> None:
    loss = policy_loss("grpo")(
        inputs([1.0, 1.5, 1.5, 0.5, 0.5], [1.0, 2.0, -2.0, 2.0, -2.0])
    ).loss
    # bounds .8 and 1.28: a gain is capped at 1.28 · 2, a loss at .8 · -2, and never the other way
    # round
    expected = [-1.0, -2.56, 3.0, -1.0, 1.6]
    assert loss.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_bound_that_bites_removes_the_gradient() -> None:
    given = inputs([1.5, 0.5, 1.5, 0.5], [1.0, -1.0, -1.0, 1.0])
    policy_loss("grpo")(given).loss.sum().backward()
    # the first two are clipped; for the others the gradient is -r·A
    assert given.logprobs.grad is not None
    assert given.logprobs.grad.tolist() == pytest.approx([0.0, 0.0, 1.5, -0.5], abs=1e-6)


def test_clip_fractions_count_tokens_whose_gradient_a_bound_removed() -> None:
    stats = policy_loss("grpo")(inputs([1.5, 0.5, 1.5, 0.5], [1.0, -1.0, -1.0, 1.0])).stats
    assert (
        stats["policy/clip_frac_low"].sum.item(),
        stats["policy/clip_frac_low"].count,
    ) == (
        1.0,
        4,
    )
    assert (
        stats["policy/clip_frac_high"].sum.item(),
        stats["policy/clip_frac_high"].count,
    ) == (
        1.0,
        4,
    )


def test_kl_old_estimates_from_the_old_policys_tokens() -> None:
    # (r - 1) - log r
    stat = policy_loss("grpo")(inputs([2.0], [1.0])).stats["policy/kl_old"]
    assert stat.sum.item() == pytest.approx(1.0 - math.log(2.0), abs=1e-6)


def test_k3_is_zero_for_equal_policies_and_positive_otherwise() -> None:
    # exp(d) - d - 1 with d = log 2 and log 1/2
    estimates = k3(
        tensor([-1.0, -1.0, -1.0]), tensor([0.0, math.log(2.0), -math.log(2.0)]) - 1.0
    )
    assert estimates.tolist() == pytest.approx(
        [0.0, 1 - math.log(2), 0.5 + math.log(2) - 1], abs=1e-6
    )


def test_kl_against_the_reference_stands_beside_the_loss_with_its_coefficient() -> None:
    given = inputs([1.0], [0.0], ref_logprobs=tensor([math.log(2.0) - 1.0]))
    outcome = policy_loss("grpo", {"kl_coef": 0.5})(given)
    assert outcome.loss.tolist() == [0.0]
    kl = outcome.terms["kl"]
    assert (kl.values.tolist(), kl.coef) == (
        pytest.approx([1 - math.log(2)], abs=1e-6),
        0.5,
    )
    assert outcome.stats["policy/kl_ref"].sum.item() == pytest.approx(
        1 - math.log(2), abs=1e-6
    )


def test_without_a_coefficient_there_is_no_kl_term() -> None:
    outcome = policy_loss("grpo")(inputs([1.0], [1.0]))
    assert not outcome.terms
    assert "policy/kl_ref" not in outcome.stats


def test_a_kl_in_the_reward_is_told_as_one_in_the_loss_is() -> None:
    given = inputs([1.0], [1.0], ref_logprobs=tensor([math.log(2.0)]))
    outcome = policy_loss("reinforce_plus_plus", {"kl_coef": 0.5})(given)
    assert not outcome.terms  # its advantages have it
    assert outcome.stats["policy/kl_ref"].count == 1


DIFFERENCES = (math.log(2), 2.3, 2.5, 5.0, 90.0, 2000.0, -9.0, -12.0, -2000.0, 0.0)
"""Nats by which the reference finds a token likelier than the policy."""


def test_a_capped_kl_counts_as_the_cap_and_has_no_gradient_above_it() -> None:
    logprobs = torch.full((len(DIFFERENCES),), -1.0, requires_grad=True)
    found = capped_k3(logprobs, logprobs.detach() + tensor(DIFFERENCES), 10.0)
    found.sum().backward()
    # exp(d) - d - 1 with gradient 1 - exp(d), where that is below 10: it is 6.67 at 2.3, 8.68 at
    # 2.5 and 11.0 at -12
    kept = [1 - math.log(2), math.exp(2.3) - 3.3, math.exp(2.5) - 3.5]
    assert found.tolist() == pytest.approx(
        [*kept, 10.0, 10.0, 10.0, math.exp(-9) + 8.0, 10.0, 10.0, 0.0], rel=1e-5
    )
    assert logprobs.grad is not None
    slopes = [
        -1.0,
        1 - math.exp(2.3),
        1 - math.exp(2.5),
        0.0,
        0.0,
        0.0,
        1 - math.exp(-9),
        0.0,
        0.0,
        0.0,
    ]
    assert logprobs.grad.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-6)


def test_an_uncapped_kl_is_k3() -> None:
    difference = tensor([5.0, -12.0])
    assert capped_k3(
        tensor([-1.0, -1.0]), difference - 1.0, None
    ).tolist() == pytest.approx([math.exp(5.0) - 6.0, math.exp(-12.0) + 11.0], rel=1e-5)


def low_var_kl(difference: float) -> float:
    """verl's estimate of a token by its definition: the difference held to 20 nats, then k3 held to
    10.
    """
    held = max(-20.0, min(20.0, difference))
    return min(10.0, math.exp(held) - held - 1.0)


def test_the_default_cap_is_verls() -> None:
    cap = GRPOSettings().kl_cap
    for step in range(-400, 401):
        difference = step / 10
        found = capped_k3(
            tensor(0.0, dtype=torch.float64), tensor(difference, dtype=torch.float64), cap
        )
        assert found.item() == pytest.approx(low_var_kl(difference), rel=1e-12)


def test_the_dual_clip_bounds_what_a_bad_token_costs() -> None:
    given = inputs([5.0, 2.0, 0.5, 5.0], [-1.0, -1.0, -2.0, 1.0])
    outcome = policy_loss("grpo", {"clip_dual": 3.0})(given)
    outcome.loss.sum().backward()
    # the first would cost 5 and costs 3, without gradient; the others are as without it: 2, .8 · 2,
    # and -1.28
    assert outcome.loss.tolist() == pytest.approx([3.0, 2.0, 1.6, -1.28], abs=1e-6)
    assert given.logprobs.grad is not None
    assert given.logprobs.grad.tolist() == pytest.approx([0.0, 2.0, 0.0, 0.0], abs=1e-6)
    stat = outcome.stats["policy/clip_frac_dual"]
    assert (stat.sum.item(), stat.count) == (1.0, 4)


def test_without_a_dual_clip_nothing_of_it_is_told() -> None:
    outcome = policy_loss("grpo")(inputs([5.0], [-1.0]))
    assert outcome.loss.tolist() == pytest.approx([5.0], abs=1e-6)
    assert "policy/clip_frac_dual" not in outcome.stats


def test_kl_old_k1_is_the_mean_difference_held_to_20_nats() -> None:
    stat = policy_loss("grpo")(inputs([2.0, 0.5, math.exp(-30.0)], [1.0, 1.0, 1.0])).stats[
        "policy/kl_old_k1"
    ]
    assert stat.sum.item() == pytest.approx(-math.log(2.0) + math.log(2.0) + 20.0, abs=1e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("nats", [-300.0, 300.0])
@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "sapo", "dppo"])
def test_a_ratio_that_overflows_gives_finite_losses_and_gradients(
    name: str, nats: float, advantage: float
) -> None:
    logprobs = tensor([-301.0 + max(nats, 0.0), -1.0], requires_grad=True)
    old = tensor([-301.0 - min(nats, 0.0), -1.0])
    given = policy_inputs(
        logprobs,
        old_logprobs=old,
        rollout_logprobs=old,
        advantages=tensor([advantage, advantage]),
        sample_row=tensor([0, 1]),
    )
    loss = policy_loss(name)(given).loss
    loss.sum().backward()
    assert logprobs.grad is not None
    assert bool(loss.isfinite().all())
    assert bool(logprobs.grad.isfinite().all())
    assert logprobs.grad[1].item() == pytest.approx(-advantage)  # the token beside it


@pytest.mark.parametrize("missing", ["advantages", "ref_logprobs"])
def test_a_missing_column_is_named(missing: str) -> None:
    complete = replace(inputs([1.0], [1.0]), ref_logprobs=tensor([-1.0]))
    with pytest.raises(ValueError, match=rf"batch\.{missing} is missing"):
        policy_loss("grpo", {"kl_coef": 0.1})(replace(complete, **{missing: None}))


def test_imitation_is_minus_the_logprob() -> None:
    outcome = policy_loss("sft")(inputs([1.0, 2.0], None))
    assert outcome.loss.tolist() == pytest.approx([1.0, 1.0 - math.log(2.0)], abs=1e-6)


def test_the_correction_is_capped_detached_and_one_for_tokens_that_nobody_sampled() -> None:
    given = inputs(
        [1.0, 1.0, 1.0, 1.0],
        [1.0] * 4,
        rollout_logprobs=tensor([-1.0, -1.0 - math.log(1.5), -9.0, -9.0]),
        sampled=tensor([True, True, True, False]),
    )
    factor = truncated_importance(given, cap=2.0).factor
    assert factor.tolist() == pytest.approx([1.0, 1.5, 2.0, 1.0], abs=1e-6)
    assert not factor.requires_grad


def test_credit_is_spread_over_trained_tokens_alone() -> None:
    credit = token_credit(
        tensor([1.0, 1.0, 0.0]),
        trajectory=tensor([1.0, 1.0, float("nan")]),
        turn=tensor([0.5, -0.5, 0.0]),
    )
    assert broadcast_to_tokens(credit).advantages.tolist() == [1.5, 0.5, 0.0]
