"""Corrections in a loss, and losses at the edges, against verl 0.9.1: weights and rejections
together, bypass, ratios beyond 20 nats, a batch without a trained token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.algorithms import make_algorithm as make
from agentrl.algorithms.functions.corrections import rollout_correction
from agentrl.algorithms.functions.token_terms import estimate
from agentrl.algorithms.settings.base import RolloutCorrection
from tests.algorithms.made import policy_inputs
from tests.oracles.cases import (
    CLOSE,
    F64,
    MASK,
    PLACES,
    ROWS,
    Case,
    inputs,
    make_case,
    scattered,
    weights_of,
)
from tests.oracles.conftest import Ask
from tests.oracles.test_against_verl import LOSSES, columns

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case()


def loss_of(
    name: str, settings: dict[str, Any], case: Case, factor: F64 | None = None, **given: Any
) -> tuple[float, F64]:
    """Ours by tokens, each times ``factor``, and its ``[6, 9]`` gradient."""
    own = inputs(case, **given)
    spec = make(name, settings)
    assert spec.policy_loss is not None
    weight = weights_of("trajectory_mean" if name == "sapo" else "token_mean")
    if factor is not None:
        weight = weight * torch.from_numpy(factor[ROWS, PLACES])
    loss = (spec.policy_loss(own).loss * weight).sum()
    loss.backward()
    assert own.logprobs.grad is not None
    return loss.item(), scattered(own.logprobs.grad)


def agree(found: tuple[float, F64], answer: Any, share: float = 1.0) -> None:
    np.testing.assert_allclose(found[0] * share, answer["loss"], **CLOSE)
    np.testing.assert_allclose(found[1] * share, answer["gradient"], **CLOSE)
    assert np.abs(found[1]).max() > 1e-3


def asked(case: Case, name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    _, _, mode, settings = LOSSES[name]
    return "policy_loss", {"mode": mode, "settings": settings, "reduction": "token-mean",
                           **columns(case), **more}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_correction_multiplies_each_loss(verl: Ask, case: Case, name: str) -> None:
    factor = np.random.default_rng(2).uniform(0, 2, MASK.shape) * (MASK != 0)
    (answer,) = verl([asked(case, name, weights=factor)])
    ours, settings, _, _ = LOSSES[name]
    rollout = {"rollout_logprobs": case.flat("old_log_prob")} if ours == "dppo" else {}
    agree(loss_of(ours, settings, case, factor, **rollout), answer)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "gspo"])
@pytest.mark.parametrize("nats", [-40.0, 40.0, 120.0])
def test_a_ratio_counts_as_twenty_nats_at_most(
    verl: Ask, case: Case, name: str, nats: float
) -> None:
    own, old = case.log_prob.copy(), case.old_log_prob.copy()
    for row in (0, 1, 5):  # advantages of either sign
        old[row, 1] = -1.0 + min(nats, 0) - max(nats, 0)
        own[row, 1] = -1.0 if nats > 0 else -1.0 + 2 * nats
    far = replace(case, log_prob=own, old_log_prob=old)
    (answer,) = verl([asked(far, name)])
    ours, settings, _, _ = LOSSES[name]
    rollout = {"rollout_logprobs": far.flat("old_log_prob")} if ours == "dppo" else {}
    agree(loss_of(ours, settings, far, **rollout), answer)


def test_gspo_holds_its_ratio_to_other_nats(verl: Ask, case: Case) -> None:
    # of a sequence: verl to 10, ours to 20, as any other ratio
    old = case.old_log_prob.copy()
    old[2, 0] = case.log_prob[2, 0] - 15.0  # a row of one token
    advantages = -np.abs(case.advantages)
    far = replace(case, old_log_prob=old, advantages=advantages)
    (answer,) = verl([asked(far, "gspo")])
    found, _ = loss_of("gspo", LOSSES["gspo"][1], far)
    held = (np.exp(15.0) - np.exp(10.0)) * -advantages[2, 0] / MASK.sum()
    np.testing.assert_allclose(found - held, answer["loss"], **CLOSE)


def test_a_batch_without_a_trained_token_is_nothing_here_and_no_number_there(
    verl: Ask, case: Case
) -> None:
    given = {**columns(case), "mask": np.zeros_like(MASK)}
    _, _, mode, settings = LOSSES["ppo"]
    (answer,) = verl([("policy_loss", {"mode": mode, "settings": settings,
                                       "reduction": "token-mean", **given})])  # fmt: skip
    assert np.isnan(answer["loss"])
    spec = make("grpo")
    assert spec.policy_loss is not None
    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    given_ours = policy_inputs(empty, advantages=torch.zeros(0, dtype=torch.float64))
    assert spec.policy_loss(given_ours).loss.sum().item() == 0.0


def test_the_default_kl_is_low_var_kl_at_any_distance(verl: Ask) -> None:
    own = np.full(401, -50.0)
    other = own + np.linspace(-49, 49, 401)
    (answer,) = verl([("kl", {"estimator": "low_var_kl", "log_prob": own, "other": other})])
    mine = torch.from_numpy(own).requires_grad_()
    found = estimate(mine, torch.from_numpy(other), "k3", 10.0)
    found.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), answer["value"], **CLOSE)
    assert mine.grad is not None
    np.testing.assert_allclose(mine.grad.numpy(), answer["gradient"], **CLOSE)


COMBINED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"level": "token", "cap": 1.5, "reject": "sequence_mean", "reject_above": 0.08},
        {"rollout_is": "token", "rollout_is_threshold": 1.5, "rollout_rs": "seq_mean_k3",
         "rollout_rs_threshold": "0.08"},
    ),
    (
        {"level": "sequence", "cap": 4.0, "reject": "token", "reject_above": 0.08,
         "reject_by": "k2"},
        {"rollout_is": "sequence", "rollout_is_threshold": 4.0, "rollout_rs": "token_k2",
         "rollout_rs_threshold": "0.08"},
    ),
]  # fmt: skip


@pytest.mark.invariant
def test_weights_and_rejections_combine(verl: Ask, case: Case) -> None:
    answers = verl(
        [("corrected", {"log_prob": case.log_prob, "rollout": case.old_log_prob, "mask": MASK,
                        **theirs}) for _, theirs in COMBINED]
    )  # fmt: skip
    for (settings, _), answer in zip(COMBINED, answers, strict=True):
        found = rollout_correction(
            policy_inputs(
                case.flat("log_prob"),
                rollout_logprobs=case.flat("old_log_prob"),
                sample_row=torch.from_numpy(ROWS),
            ),
            settings=RolloutCorrection(**settings),
        ).factor
        wanted = answer["weights"] * answer["kept"]
        np.testing.assert_allclose(scattered(found), wanted * MASK, **CLOSE)
        assert 0 < np.count_nonzero(wanted) < MASK.sum()


def test_a_sequences_weight_is_held_after_its_sum(verl: Ask) -> None:
    # 30 - 28 + 0 - 1 is 1 nat, though one of them alone would be held to 20
    log_ratio = np.array([[30.0, -28.0, 0.0, -1.0], [-90.0, 45.0, 5.0, 0.0]])
    mask = np.ones_like(log_ratio)
    (answer,) = verl([("correction", {"log_ratio": log_ratio, "mask": mask,
                                      "level": "sequence", "threshold": 5.0})])  # fmt: skip
    found = rollout_correction(
        policy_inputs(
            torch.from_numpy(log_ratio.reshape(-1)) - 100.0,
            rollout_logprobs=torch.full((8,), -100.0, dtype=torch.float64),
            sample_row=torch.arange(8) // 4,
        ),
        settings=RolloutCorrection(level="sequence", cap=5.0),
    ).factor.reshape(2, 4)
    np.testing.assert_allclose(found.numpy(), answer["weights"], **CLOSE)
    np.testing.assert_allclose(found[:, 0].numpy(), [np.e, np.exp(-20)], **CLOSE)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_effective_sample_size(verl: Ask, case: Case, level: str) -> None:
    near = case.old_log_prob + np.clip(case.log_prob - case.old_log_prob, -1, 1)
    (answer,) = verl([("correction", {"log_ratio": near - case.old_log_prob, "mask": MASK,
                                      "level": level, "threshold": 2.0})])  # fmt: skip
    stats = rollout_correction(
        policy_inputs(
            torch.from_numpy(near[ROWS, PLACES]),
            rollout_logprobs=case.flat("old_log_prob"),
            sample_row=torch.from_numpy(ROWS),
        ),
        settings=RolloutCorrection(level=level),  # type: ignore[arg-type]
    ).stats
    mean, square = (
        (one.sum / one.count).item()
        for one in (stats["mismatch/weight"], stats["mismatch/weight_sq"])
    )
    assert mean**2 / square == pytest.approx(float(answer["ess"]), rel=1e-6)
    assert mean**2 / square < 0.99


BYPASS = {"reduction": "token-mean", "settings": LOSSES["ppo"][3]}


def test_bypass_is_the_samplers_ratio_in_the_loss(verl: Ask, case: Case) -> None:
    correction = {"rollout_is": None, "loss_type": "ppo_clip"}
    (answer,) = verl(
        [("bypass_loss", {"correction": correction, **BYPASS, **columns(case)})]
    )
    settings = {**LOSSES["ppo"][1], "old_logprobs": "rollout"}
    agree(loss_of("grpo", settings, case), answer)


def test_bypass_with_reinforce_is_cispo_against_the_sampler(verl: Ask, case: Case) -> None:
    correction = {
        "rollout_is": "token",
        "rollout_is_threshold": 3.0,
        "loss_type": "reinforce",
    }
    (answer,) = verl(
        [("bypass_loss", {"correction": correction, **BYPASS, **columns(case)})]
    )
    settings = {"ratio_cap": 3.0, "old_logprobs": "rollout"}
    agree(loss_of("cispo", settings, case), answer)


def test_what_bypass_rejects_leaves_verls_denominator(verl: Ask, case: Case) -> None:
    # ours keeps it there, so that weights are known before the forward
    correction = {"rollout_is": "token", "rollout_is_threshold": 3.0, "loss_type": "reinforce",
                  "rollout_rs": "token_k2", "rollout_rs_threshold": "0.08"}  # fmt: skip
    (answer,) = verl(
        [("bypass_loss", {"correction": correction, **BYPASS, **columns(case)})]
    )
    kept = (case.log_prob - case.old_log_prob) ** 2 / 2 <= 0.08
    found = loss_of(
        "cispo", {"ratio_cap": 3.0, "old_logprobs": "rollout"}, case, kept * 1.0
    )
    number = (kept * MASK).sum()
    assert 0 < number < MASK.sum()
    agree(found, answer, MASK.sum() / number)
