"""Losses, advantages, corrections and reductions against verl 0.9.1, values and gradients.

Both sides compute in float64 on the same ragged batch: whole rows, a row of one token, rows with a
tool's tokens inside, one without a trained token, and ratios up to exp(15). Where verl defines a
thing otherwise, the test says so and compares what is common:

- it holds log ratios to 20 nats, which none of these exceeds;
- it normalises by the unbiased variance and 1e-8 within the root, we by the biased one;
- it adds 1e-8 to denominators of a binary KL, and 1e-8 to a row's number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.algorithms import TokenCredit, ValueInputs
from agentrl.algorithms import make_algorithm as make
from agentrl.algorithms.functions.corrections import rollout_correction
from agentrl.algorithms.functions.credit import group_advantages, leave_one_out
from agentrl.algorithms.functions.losses import clipped_value_loss
from agentrl.algorithms.functions.returns import discounted_returns, generalized_advantages
from agentrl.algorithms.functions.token_terms import estimate
from agentrl.algorithms.settings.base import RolloutCorrection
from tests.algorithms.made import policy_inputs, token_credit
from tests.oracles.cases import (
    CLOSE,
    F64,
    GROUP,
    MASK,
    PLACES,
    ROWS,
    Case,
    inputs,
    make_case,
    scattered,
    spread,
    totals,
    weights_of,
)
from tests.oracles.conftest import Ask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case()


def columns(case: Case) -> dict[str, F64]:
    return {
        "log_prob": case.log_prob,
        "old_log_prob": case.old_log_prob,
        "advantages": case.advantages,
        "mask": MASK,
    }


LOSSES: Mapping[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "ppo": (
        "grpo",
        {"clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0},
        "vanilla",
        {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0},
    ),
    "gspo": (
        "gspo",
        {"clip_low": 0.2, "clip_high": 0.28},
        "gspo",
        {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
    ),
    "sapo": (
        "sapo",
        {"tau_positive": 1.0, "tau_negative": 1.05},
        "sapo",
        {"tau_pos": 1.0, "tau_neg": 1.05},
    ),
    "cispo": (
        "cispo",
        {"ratio_floor": 0.0, "ratio_cap": 5.0},
        "cispo",
        {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
    ),
    "dppo_tv": (
        "dppo",
        {"divergence": "tv", "clip_low": 0.15, "clip_high": 0.1, "ratio_cap": 20.0},
        "dppo_tv",
        {"clip_ratio_low": 0.15, "clip_ratio_high": 0.1, "clip_ratio_c": 20.0},
    ),
    "dppo_kl": (
        "dppo",
        {"divergence": "kl", "clip_low": 0.05, "clip_high": 0.02, "ratio_cap": 20.0},
        "dppo_kl",
        {"clip_ratio_low": 0.05, "clip_ratio_high": 0.02, "clip_ratio_c": 20.0},
    ),
}
REDUCTIONS = {
    "token_mean": "token-mean",
    "trajectory_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}


@pytest.fixture(scope="module")
def losses(verl: Ask, case: Case) -> dict[tuple[str, str], dict[str, F64]]:
    """verl's of every mode and reduction, by ours; one process computes them all."""
    keys = [(name, reduction) for name in LOSSES for reduction in REDUCTIONS]
    calls = [
        ("policy_loss", {"mode": LOSSES[name][2], "settings": LOSSES[name][3],
                         "reduction": REDUCTIONS[reduction], **columns(case)})
        for name, reduction in keys
    ]  # fmt: skip
    return dict(zip(keys, verl(calls), strict=True))


@pytest.mark.invariant
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(
    losses: Mapping[tuple[str, str], Mapping[str, F64]],
    case: Case,
    name: str,
    reduction: str,
) -> None:
    if name == "sapo" and reduction != "trajectory_mean":
        reduction = "trajectory_mean"  # verl reduces SAPO so whatever it is told
    ours, settings, _, _ = LOSSES[name]
    rollout = {"rollout_logprobs": case.flat("old_log_prob")} if ours == "dppo" else {}
    given = inputs(case, **rollout)
    policy_loss = make(ours, settings).policy_loss
    assert policy_loss is not None
    # verl's horizon is the width of its matrix
    weight = weights_of(reduction, MASK.shape[1] if reduction == "constant" else None)
    loss = (policy_loss(given).loss * weight).sum()
    loss.backward()
    expected = losses[name, reduction]
    np.testing.assert_allclose(loss.item(), expected["loss"], **CLOSE)
    assert given.logprobs.grad is not None
    np.testing.assert_allclose(
        scattered(given.logprobs.grad), expected["gradient"], **CLOSE
    )


def test_kl_estimators(verl: Ask, case: Case) -> None:
    names = ["k1", "k2", "k3", "k1+", "k3+"]
    given = {"log_prob": case.log_prob, "other": case.other}
    answers = verl([("kl", {"estimator": name, **given}) for name in names])
    for name, answer in zip(names, answers, strict=True):
        own = torch.from_numpy(case.log_prob).requires_grad_()
        found = estimate(own, torch.from_numpy(case.other), name, 10.0)  # type: ignore[arg-type]
        found.sum().backward()
        np.testing.assert_allclose(found.detach().numpy(), answer["value"], **CLOSE)
        assert own.grad is not None
        np.testing.assert_allclose(own.grad.numpy(), answer["gradient"], **CLOSE)


def test_value_loss(verl: Ask, case: Case) -> None:
    returns = case.values[:, ::-1].copy()
    (answer,) = verl(
        [("value_loss", {"clip": 0.2, "values": case.values, "old_values": case.old_values,
                         "returns": returns, "mask": MASK})]
    )  # fmt: skip
    values = case.flat("values").requires_grad_()
    flat_returns = torch.from_numpy(returns[ROWS, PLACES].copy())
    outcome = clipped_value_loss(
        ValueInputs(values, case.flat("old_values"), flat_returns), clip=0.2
    )
    loss = (outcome.loss * weights_of("token_mean")).sum()
    loss.backward()
    np.testing.assert_allclose(loss.item(), answer["loss"], **CLOSE)
    assert values.grad is not None
    np.testing.assert_allclose(scattered(values.grad), answer["gradient"], **CLOSE)


def credit(case: Case, **given: F64) -> TokenCredit:
    """The batch as a shard, a row a trajectory of one turn."""
    row = torch.from_numpy(np.repeat(np.arange(6), 9))
    flat = {
        name: torch.from_numpy(column.reshape(-1).copy()) for name, column in given.items()
    }
    return token_credit(
        torch.from_numpy(MASK.reshape(-1)),
        turn_row=row,
        sample_row=row,
        trajectory_row=row,
        reward=torch.from_numpy(case.rewards.reshape(-1).copy()),
        **flat,
    )


def whitened(values: F64) -> F64:
    """As verl does it, over the mask."""
    own = values[MASK != 0]
    return np.where(MASK != 0, (values - own.mean()) / np.sqrt(own.var(ddof=1) + 1e-8), 0.0)


@pytest.mark.parametrize(("discount", "lam"), [(1.0, 0.95), (0.9, 1.0), (0.99, 0.0)])
def test_generalised_advantages(verl: Ask, case: Case, discount: float, lam: float) -> None:
    (answer,) = verl(
        [("gae", {"discount": discount, "lam": lam, "rewards": case.rewards,
                  "values": case.values, "mask": MASK})]
    )  # fmt: skip
    given = credit(case, values=case.values, final_values=np.zeros_like(MASK))
    found = generalized_advantages(
        given, discount=discount, lam=lam, bootstrap="none", reward=given.reward
    )
    advantages = found.numpy().reshape(MASK.shape).astype(np.float64)
    np.testing.assert_allclose(
        (advantages + case.values) * MASK, answer["returns"] * MASK, **CLOSE
    )
    np.testing.assert_allclose(whitened(advantages), answer["advantages"] * MASK, **CLOSE)


def returns_of(discount: float) -> Callable[[Case], F64]:
    def found(case: Case) -> F64:
        given = credit(case)
        returns = discounted_returns(given, discount=discount, reward=given.reward)
        return whitened(returns.numpy().reshape(MASK.shape).astype(np.float64))

    return found


ESTIMATORS: Mapping[str, tuple[dict[str, Any], Callable[[Case], F64]]] = {
    "grpo": (
        {"epsilon": 1e-6, "norm_adv_by_std_in_grpo": True},
        lambda case: spread(group_advantages(totals(case).reward, GROUP, eps=1e-6)),
    ),
    "rloo": ({}, lambda case: spread(leave_one_out(totals(case).reward, GROUP))),
    "reinforce_plus_plus": ({"gamma": 0.9}, returns_of(0.9)),
    "reinforce_plus_plus_baseline": (
        {},
        lambda case: whitened(
            spread(group_advantages(totals(case).reward, GROUP, scale_rewards="none"))
        ),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantage_estimators(verl: Ask, case: Case, name: str) -> None:
    settings, ours = ESTIMATORS[name]
    (answer,) = verl(
        [("estimator", {"name": name, "rewards": case.rewards, "mask": MASK, "index": GROUP,
                        **settings})]
    )  # fmt: skip
    np.testing.assert_allclose(ours(case), answer["advantages"], **CLOSE)


def test_importance_weights(verl: Ask, case: Case) -> None:
    log_ratio = case.log_prob - case.old_log_prob
    cases: list[tuple[dict[str, Any], str, float | str]] = [
        ({"level": "token", "cap": 2.0}, "token", 2.0),
        ({"level": "sequence", "cap": 3.0}, "sequence", 3.0),
        (
            {"level": "token", "cap": 2.0, "floor": 0.5, "outside": "mask"},
            "token",
            "0.5_2.0",
        ),
        (
            {"level": "sequence", "cap": 3.0, "floor": 0.3, "outside": "mask"},
            "sequence",
            "0.3_3.0",
        ),
    ]
    answers = verl(
        [("correction", {"log_ratio": log_ratio, "mask": MASK, "level": level, "threshold": limit})
         for _, level, limit in cases]
    )  # fmt: skip
    for (settings, _, _), answer in zip(cases, answers, strict=True):
        found = corrected(case, settings)
        np.testing.assert_allclose(scattered(found), answer["weights"] * MASK, **CLOSE)


def test_rejections(verl: Ask, case: Case) -> None:
    log_ratio = case.log_prob - case.old_log_prob
    # bounds of verl's k1 are ratios of the sampler to the policy
    k1 = {"reject_by": "k1", "reject_above": np.log(1.5), "reject_below": np.log(0.7)}
    cases: list[tuple[dict[str, Any], str, float | str]] = [
        ({"reject": "token", **k1}, "token_k1", "0.7_1.5"),
        ({"reject": "sequence_sum", **k1}, "seq_sum_k1", "0.7_1.5"),
        ({"reject": "sequence_mean", **k1}, "seq_mean_k1", "0.7_1.5"),
    ]
    for estimator in ("k2", "k3"):
        own = {"reject_by": estimator, "reject_above": 0.08}
        cases += [
            ({"reject": "token", **own}, f"token_{estimator}", "0.08"),
            ({"reject": "sequence_sum", **own}, f"seq_sum_{estimator}", "0.08"),
            ({"reject": "sequence_mean", **own}, f"seq_mean_{estimator}", "0.08"),
            ({"reject": "sequence_max", **own}, f"seq_max_{estimator}", "0.08"),
        ]
    answers = verl(
        [("rejection", {"log_ratio": log_ratio, "mask": MASK, "mode": mode, "threshold": limit})
         for _, mode, limit in cases]
    )  # fmt: skip
    kept = set()
    for (settings, mode, _), answer in zip(cases, answers, strict=True):
        found = scattered(corrected(case, settings))
        np.testing.assert_array_equal(found, answer["kept"] * MASK, err_msg=mode)
        kept.add(int(found.sum()))
    assert len(kept) >= 4  # the bounds do bite


def corrected(case: Case, settings: Mapping[str, Any]) -> Tensor:
    """``[N]`` factors with π_old the current policy and π_rollout the old one."""
    given = policy_inputs(
        case.flat("log_prob"),
        rollout_logprobs=case.flat("old_log_prob"),
        sample_row=torch.from_numpy(ROWS),
    )
    return rollout_correction(given, settings=RolloutCorrection(**settings)).factor
