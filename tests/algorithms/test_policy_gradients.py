"""The losses of the policy-gradient family, by hand: values, gradients, what a bound removes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from agentrl.algorithms import ALGORITHMS, PolicyInputs, make_algorithm
from agentrl.errors import ConfigError
from tests.algorithms.made import policy_inputs

PLAYED = [name for name in ALGORITHMS if name not in ("sft", "reward_model")]


def inputs(ratios: list[float], advantages: list[float], **columns: Any) -> PolicyInputs:
    """Tokens whose π_old and π_rollout are 1/e, and whose ratio to them is given; float64."""
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    logprobs = (old + tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    own = {
        "old_logprobs": old,
        "rollout_logprobs": old,
        "advantages": tensor(advantages, dtype=torch.float64),
    }
    return policy_inputs(logprobs, **(own | columns))


def loss_and_gradient(
    name: str, given: PolicyInputs, settings: dict[str, Any] | None = None
) -> tuple[list[float], list[float]]:
    """The losses of an algorithm, and the gradient of their sum."""
    loss = make_algorithm(name, settings).policy_loss
    assert loss is not None
    found = loss(given).loss
    given.logprobs.grad = None
    found.sum().backward()
    assert given.logprobs.grad is not None
    return found.tolist(), given.logprobs.grad.tolist()


@pytest.mark.parametrize("name", PLAYED)
def test_an_update_by_the_sampler_itself_is_the_plain_policy_gradient(name: str) -> None:
    given = inputs([1.0, 1.0, 1.0], [2.0, -3.0, 0.0])
    _, gradient = loss_and_gradient(name, given)
    assert gradient == pytest.approx([-2.0, 3.0, 0.0], abs=1e-12)


def test_gspo_takes_the_geometric_mean_of_a_samples_ratios() -> None:
    # sample 0: ratios 4 and 1 -> 2, beyond 1.5 with A > 0; sample 1: .25 and 1 -> .5, within
    given = inputs(
        [4.0, 0.25, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], sample_row=tensor([0, 1, 0, 1])
    )
    bounds = {"clip_low": 0.2, "clip_high": 0.5}
    loss, gradient = loss_and_gradient("gspo", given, bounds)
    assert loss == pytest.approx([-1.5, -0.5, -1.5, -0.5])
    # by token: d s / d log π_t = s / |y| summed over the sample's two equal terms
    assert gradient == pytest.approx([0.0, -0.5, 0.0, -0.5])


def test_gspos_gradient_is_that_of_the_loss_by_sequence() -> None:
    rows = tensor([0, 0, 0, 1, 1])
    ratios, advantages = [1.1, 0.9, 1.3, 0.7, 1.2], [2.0, 2.0, 2.0, -1.0, -1.0]
    given = inputs(ratios, advantages, sample_row=rows)
    _, gradient = loss_and_gradient("gspo", given, {"clip_low": 0.9, "clip_high": 9.0})

    logprobs = given.logprobs.detach().clone().requires_grad_()
    total: Tensor = logprobs.new_zeros(())
    for row, advantage in ((0, 2.0), (1, -1.0)):
        own = rows == row
        total = (
            total
            - advantage * (logprobs - given.old_logprobs)[own].mean().exp() * own.sum()
        )
    total.backward()
    assert logprobs.grad is not None
    assert gradient == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


def test_cispo_weighs_by_a_bounded_ratio_and_keeps_every_gradient() -> None:
    given = inputs([9.0, 0.5, 0.01], [1.0, -2.0, 1.0])
    settings = {"ratio_cap": 5.0, "ratio_floor": 0.1}
    loss, gradient = loss_and_gradient("cispo", given, settings)
    logprobs = given.logprobs.tolist()
    assert loss == pytest.approx(
        [-5.0 * logprobs[0], 1.0 * logprobs[1], -0.1 * logprobs[2]]
    )
    assert gradient == pytest.approx([-5.0, 1.0, -0.1])


def test_sapos_gate_is_smooth_and_sharper_for_negative_advantages() -> None:
    given = inputs([2.0, 2.0], [1.0, -1.0])
    settings = {"tau_positive": 1.0, "tau_negative": 2.0}
    loss, gradient = loss_and_gradient("sapo", given, settings)
    one, two = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(-2.0))
    assert loss == pytest.approx([-4 * one, 2 * two])
    # d/dlogπ of 4/τ·σ(τ(r - 1)) is 4·σ·(1 - σ)·r
    assert gradient == pytest.approx([-4 * one * (1 - one) * 2, 4 * two * (1 - two) * 2])


@pytest.mark.parametrize(
    ("divergence", "low", "expected"),
    [
        # π_rollout = .5; π = .7, .55, .3, .7: a distance of .2, .05, .2, .2
        ("tv", 0.1, [0.0, -1.1, 0.0, 1.4]),
        # KL(.5 ‖ .7) = .5·log(.25/.21) = .0872, KL(.5 ‖ .55) = .0050
        ("kl", 0.05, [0.0, -1.1, 0.0, 1.4]),
        ("kl", 0.1, [-1.4, -1.1, 0.6, 1.4]),
    ],
)
def test_dppo_drops_what_is_far_and_would_go_further(
    divergence: str, low: float, expected: list[float]
) -> None:
    sampler = torch.full((4,), math.log(0.5), dtype=torch.float64)
    probability = tensor([0.7, 0.55, 0.3, 0.7], dtype=torch.float64)
    given = policy_inputs(
        probability.log().requires_grad_(),
        rollout_logprobs=sampler,
        advantages=tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64),
    )
    bounds = {"divergence": divergence, "clip_low": low, "clip_high": low}
    _, gradient = loss_and_gradient("dppo", given, bounds)
    assert gradient == pytest.approx(expected, abs=1e-12)


def test_the_binary_kl_is_finite_for_a_certain_token() -> None:
    given = policy_inputs(
        tensor([0.0, -50.0]).requires_grad_(),
        rollout_logprobs=tensor([-50.0, 0.0]),
        advantages=tensor([1.0, -1.0]),
    )
    loss, gradient = loss_and_gradient("dppo", given, {"divergence": "kl"})
    assert all(map(math.isfinite, [*loss, *gradient]))


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        # d = log π_ref - log π = log 2
        ("k1", -math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, -math.log(2)),
        ("k3", 2 - math.log(2) - 1, 1 - 2.0),
        ("k1+", -math.log(2), -math.log(2)),
        ("k3+", 2 - math.log(2) - 1, -math.log(2)),
    ],
)
def test_a_kl_in_the_loss_is_its_estimator(
    estimator: str, value: float, gradient: float
) -> None:
    given = inputs(
        [1.0], [0.0], ref_logprobs=tensor([-1.0 + math.log(2)], dtype=torch.float64)
    )
    loss = make_algorithm("grpo", {"kl_coef": 0.5, "kl_estimator": estimator}).policy_loss
    assert loss is not None
    term = loss(given).terms["kl"]
    term.values.sum().backward()
    assert given.logprobs.grad is not None
    assert (term.coef, term.values.item()) == (0.5, pytest.approx(value))
    assert given.logprobs.grad.tolist() == pytest.approx([gradient])


def test_a_weighted_kl_has_the_kls_own_gradient_off_policy() -> None:
    # over a vocabulary of three: E_old[(π/π_old)·k3] has the gradient of KL(π, ref) for any π_old
    logits = tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    old = torch.log_softmax(tensor([1.0, 0.2, -0.7], dtype=torch.float64), 0)
    reference = torch.log_softmax(tensor([-0.2, 0.1, 0.4], dtype=torch.float64), 0)
    logprobs = torch.log_softmax(logits, 0)
    settings = {"kl_coef": 1.0, "kl_weighted": True, "kl_cap": None}
    loss = make_algorithm("grpo", settings).policy_loss
    assert loss is not None
    given = policy_inputs(
        logprobs, old_logprobs=old, ref_logprobs=reference, advantages=torch.zeros(3)
    )
    expected = (old.exp() * loss(given).terms["kl"].values).sum()
    (found,) = torch.autograd.grad(expected, logits, retain_graph=True)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    (wanted,) = torch.autograd.grad(exact, logits)
    torch.testing.assert_close(found, wanted)


def test_the_entropy_is_a_bonus() -> None:
    loss = make_algorithm("grpo", {"entropy_coef": 0.25}).policy_loss
    assert loss is not None
    given = inputs([1.0], [0.0], entropy=tensor([3.0]))
    term = loss(given).terms["entropy"]
    assert (term.values.tolist(), term.coef) == ([3.0], -0.25)


def test_an_adaptive_kl_follows_its_target() -> None:
    from agentrl.types import Stat, Stats

    spec = make_algorithm("grpo", {"kl_coef": 0.1, "kl_target": 2.0, "kl_horizon": 10})
    state = spec.initial_state
    # 3 nats: error .5
    grown = spec.next_state(state, Stats({"policy/kl_ref": Stat(30.0, 10.0)}))
    assert grown["kl_coef"] == pytest.approx(0.1 * 1.02)  # which counts as .2
    shrunk = spec.next_state(state, Stats({"policy/kl_ref": Stat(19.0, 10.0)}))
    assert shrunk["kl_coef"] == pytest.approx(0.1 * (1 - 0.05 / 10))
    assert spec.next_state(state, Stats()) == state
    loss = spec.policy_loss
    assert loss is not None
    given = inputs([1.0], [0.0], ref_logprobs=tensor([-1.0]), state={"kl_coef": 0.7})
    assert loss(given).terms["kl"].coef == 0.7


@pytest.mark.parametrize("name", PLAYED)
def test_every_record_says_which_bound_bit(name: str) -> None:
    loss = make_algorithm(name).policy_loss
    assert loss is not None
    found = loss(inputs([1.0, 50.0], [1.0, 1.0]))
    assert set(found.columns) == {"ratio", "clipped"}
    assert found.stats["policy/ratio"].count == 2


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "dapo",
            {"overlong": {"max_tokens": 9}},
            "Overlong.buffer_tokens is needed beside",
        ),
        (
            "dapo",
            {"overlong": {"max_tokens": 9, "buffer_tokens": 10}},
            "Overlong.buffer_tokens must be at most max_tokens=9, got 10",
        ),
        (
            "grpo",
            {"kl_target": 1.0},
            "GRPOSettings.kl_coef must be more than 0 with kl_target",
        ),
        (
            "reinforce_plus_plus",
            {"filter_zero_variance": True},
            "filter_zero_variance=true needs baseline='group'",
        ),
        ("dppo", {"old_logprobs": "rollout"}, "the loss compares with the sampler itself"),
        (
            "grpo",
            {"rollout_correction": {"reject": "token"}},
            "RolloutCorrection.reject_above is needed by reject",
        ),
        (
            "grpo",
            {"rollout_correction": {"reject_above": 1.0}},
            "RolloutCorrection.reject_above needs reject other than 'none'",
        ),
        (
            "grpo",
            {
                "rollout_correction": {
                    "reject": "token",
                    "reject_above": 1.0,
                    "reject_below": -1.0,
                }
            },
            "RolloutCorrection.reject_below needs reject_by='k1'",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_algorithm(name, settings)
    assert message in str(caught.value)
