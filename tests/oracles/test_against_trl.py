"""Advantages, losses, KL terms and corrections against TRL 1.16's own trainers, values and
gradients.

Both sides compute in float64 on the batch of ``cases.py``. Where TRL defines a thing otherwise, the
test says so and compares what is common (docs/algorithms.md, Where definitions differ):

- its means over rows count one without a trained token, ours do not;
- it holds no ratio to 20 nats, which none of these exceeds;
- its RLOO has one ratio a sequence, the product of its tokens'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trl.rewards import get_soft_overlong_punishment

from agentrl.algorithms import make_algorithm as make
from agentrl.algorithms.functions.credit import overlong_penalty
from tests.algorithms.made import policy_inputs, rewards_of
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
    weights_of,
)
from tests.oracles.trl_side import Answer, Fed, grpo, rloo
from tests.tiny_models import write_qwen3

pytestmark = pytest.mark.slow

GROUP_SIZE = 3
TRAINED_ROWS = int((MASK.sum(1) > 0).sum()) / len(MASK)
"""The share of rows that our means over trajectories count."""

REWARDS = np.array([0.0, 1.0, 0.25, 2.0, 2.0, -1.0])


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case()


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3(tmp_path_factory.mktemp("model"), vocab_size=8)


Ask = Callable[..., Answer]


@pytest.fixture
def ask(model_path: Path, tmp_path: Path, case: Case) -> Ask:
    """TRL's GRPO on the batch, with the settings of its configuration."""

    def asked(sampler: F64 | None = None, **settings: Any) -> Answer:
        fed = Fed(
            torch.from_numpy(case.log_prob).requires_grad_(),
            torch.from_numpy(case.old_log_prob),
            MASK,
            REWARDS,
            torch.from_numpy(case.other),
            sampler,
        )
        return grpo(model_path, tmp_path, fed, num_generations=GROUP_SIZE, **settings)

    return asked


def ours(
    name: str,
    case: Case,
    advantages: F64,
    settings: dict[str, Any],
    *,
    weight: torch.Tensor,
    sampler: F64 | None = None,
) -> tuple[float, F64]:
    """The loss and its ``[6, 9]`` gradient, as the trainer sums them."""
    spec = make(name, settings)
    assert spec.policy_loss is not None
    columns = {"advantages": torch.from_numpy(advantages)[ROWS]}
    if sampler is not None:
        columns["rollout_logprobs"] = torch.from_numpy(sampler[ROWS, PLACES])
    if spec.needs.reference:
        columns["ref_logprobs"] = case.flat("other")
    given = inputs(case, **columns)
    outcome = spec.policy_loss(given)
    corrected = outcome.loss
    correction = spec.correction(given) if spec.correction is not None else None
    if correction is not None:
        corrected = corrected * correction.factor
    loss = (corrected * weight).sum()
    for term in outcome.terms.values():
        loss = loss + term.coef * (term.values * weight).sum()
    loss.backward()
    assert given.logprobs.grad is not None
    return loss.item(), scattered(given.logprobs.grad)


def agree(found: tuple[float, F64], wanted: Answer, share: float = 1.0) -> None:
    np.testing.assert_allclose(found[0] * share, wanted.loss, **CLOSE)
    np.testing.assert_allclose(found[1] * share, wanted.gradient, **CLOSE)
    assert np.abs(wanted.gradient).max() > 1e-3


BOUNDS = {"epsilon": 0.2, "epsilon_high": 0.28}
LOSSES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "grpo": ("grpo", {}, "trajectory_mean", BOUNDS),
    "bnpo": ("grpo", {}, "token_mean", BOUNDS),
    "dapo": ("grpo", {}, "token_mean", BOUNDS),
    "dr_grpo": ("dr_grpo", {"clip_high": 0.28}, "constant", BOUNDS),
    "cispo": ("cispo", {"ratio_cap": 5.0}, "token_mean", {"epsilon_high": 5.0}),
    "sapo": ("sapo", {}, "trajectory_mean", {}),
}


@pytest.mark.invariant
@pytest.mark.parametrize("loss_type", LOSSES)
def test_losses_by_type(ask: Ask, case: Case, loss_type: str) -> None:
    name, settings, reduction, theirs = LOSSES[loss_type]
    wanted = ask(loss_type=loss_type, **theirs)
    weight = weights_of(reduction, MASK.shape[1] if reduction == "constant" else None)
    share = 1.0 if reduction == "token_mean" else TRAINED_ROWS
    agree(ours(name, case, wanted.advantages, settings, weight=weight), wanted, share)


def test_sequence_importance_sampling_is_gspo(ask: Ask, case: Case) -> None:
    wanted = ask(loss_type="grpo", importance_sampling_level="sequence", **BOUNDS)
    settings = {"clip_low": 0.2, "clip_high": 0.28}
    found = ours(
        "gspo", case, wanted.advantages, settings, weight=weights_of("trajectory_mean")
    )
    agree(found, wanted, TRAINED_ROWS)


def test_delta_is_the_dual_clip(ask: Ask, case: Case) -> None:
    wanted = ask(loss_type="bnpo", delta=1.5, **BOUNDS)
    found = ours(
        "grpo", case, wanted.advantages, {"clip_dual": 1.5}, weight=weights_of("token_mean")
    )
    agree(found, wanted)
    without = ours("grpo", case, wanted.advantages, {}, weight=weights_of("token_mean"))
    assert abs(without[0] - found[0]) > 1e-3  # it bites here


@pytest.mark.parametrize("weighted", [False, True])
def test_the_kl_term_is_an_uncapped_k3(ask: Ask, case: Case, weighted: bool) -> None:
    wanted = ask(loss_type="bnpo", beta=0.3, use_bias_correction_kl=weighted, **BOUNDS)
    settings = {"kl_coef": 0.3, "kl_cap": None, "kl_weighted": weighted}
    found = ours("grpo", case, wanted.advantages, settings, weight=weights_of("token_mean"))
    agree(found, wanted)


def test_our_default_kl_is_capped_where_trls_is_not(ask: Ask, case: Case) -> None:
    far = Case(**{**vars(case), "other": np.minimum(case.log_prob + 4.0, -1e-6)})
    weight = weights_of("token_mean")
    advantages = np.zeros(len(MASK))
    capped = ours("grpo", far, advantages, {"kl_coef": 1.0}, weight=weight)
    whole = ours("grpo", far, advantages, {"kl_coef": 1.0, "kl_cap": None}, weight=weight)
    difference = (far.other - far.log_prob)[ROWS, PLACES]
    k3 = np.expm1(difference) - difference
    assert k3.max() > 10
    np.testing.assert_allclose(whole[0], k3.mean(), **CLOSE)
    np.testing.assert_allclose(capped[0], np.minimum(k3, 10).mean(), **CLOSE)


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("token_truncate", {"level": "token"}),
        ("token_mask", {"level": "token", "outside": "mask"}),
        ("sequence_truncate", {"level": "sequence"}),
        ("sequence_mask", {"level": "sequence", "outside": "mask"}),
    ],
)
def test_importance_sampling_corrections(
    ask: Ask, case: Case, mode: str, settings: dict[str, Any]
) -> None:
    rng = np.random.default_rng(11)
    sampler = case.old_log_prob + rng.normal(0, 0.5, MASK.shape)
    wanted = ask(
        sampler,
        loss_type="bnpo",
        beta=0.1,  # no correction multiplies it
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=0.6,
        vllm_importance_sampling_clip_max=1.5,
        **BOUNDS,
    )
    found = ours(
        "grpo",
        case,
        wanted.advantages,
        {
            "kl_coef": 0.1,
            "kl_cap": None,
            "kl_weighted": True,  # TRL's default
            "rollout_correction": {"cap": 1.5, "floor": 0.6, **settings},
        },
        weight=weights_of("token_mean"),
        sampler=sampler,
    )
    agree(found, wanted)


def advantages_of(name: str, settings: dict[str, Any]) -> F64:
    return make(name, settings).credit(rewards_of(REWARDS, GROUP), {}).trajectory


@pytest.mark.parametrize(("theirs", "scale"), [("group", "std"), ("none", "none")])
def test_scaled_rewards(ask: Ask, theirs: str, scale: str) -> None:
    wanted = ask(loss_type="bnpo", scale_rewards=theirs)
    np.testing.assert_allclose(
        advantages_of("grpo", {"scale_rewards": scale}), wanted.advantages, **CLOSE
    )


def test_scaling_by_the_batch_is_trls_alone(ask: Ask) -> None:
    # group means, and the deviation of all rewards: ours scales by the group, or not at all
    wanted = ask(loss_type="bnpo", scale_rewards="batch")
    centred = advantages_of("grpo", {"scale_rewards": "none"})
    np.testing.assert_allclose(
        centred / (REWARDS.std(ddof=1) + 1e-4), wanted.advantages, **CLOSE
    )


def test_the_penalty_for_length() -> None:
    lengths = np.array([1, 79, 80, 81, 90, 99, 100, 140])
    wanted = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)(
        completion_ids=[[1] * length for length in lengths]
    )
    found = overlong_penalty(lengths, max_tokens=100, buffer_tokens=20)
    np.testing.assert_allclose(-found, wanted, **CLOSE)


def rloo_case(on_policy: bool) -> tuple[Fed, F64]:
    """Rows whose masked tokens are at their ends, which is all that TRL's RLOO knows."""
    rng = np.random.default_rng(3)
    mask = np.arange(5) < np.array([5, 1, 3, 2, 4, 5])[:, None]
    own = -rng.exponential(1.0, mask.shape)
    old = own if on_policy else own + rng.normal(0, 0.1, mask.shape)
    other = own + rng.normal(0, 0.3, mask.shape)
    fed = Fed(
        torch.from_numpy(own).requires_grad_(),
        torch.from_numpy(old),
        mask.astype(np.float64),
        REWARDS,
        torch.from_numpy(other),
    )
    return fed, other


ask_rloo = partial(rloo, num_generations=GROUP_SIZE)


def test_rloo_advantages_and_its_gradient_on_policy(
    model_path: Path, tmp_path: Path
) -> None:
    fed, _ = rloo_case(on_policy=True)
    wanted = ask_rloo(model_path, tmp_path, fed, beta=0.0)
    advantages = advantages_of("rloo", {})
    np.testing.assert_allclose(advantages, wanted.advantages, **CLOSE)
    # at a ratio of 1 a product of ratios has the gradient of their sum
    np.testing.assert_allclose(
        -(advantages[:, None] * fed.mask) / len(fed.mask), wanted.gradient, **CLOSE
    )
    rows, _ = np.nonzero(fed.mask)
    given = policy_inputs(
        torch.from_numpy(np.asarray(fed.log_prob.detach())[fed.mask != 0]).requires_grad_(),
        advantages=torch.from_numpy(advantages[rows]),
    )
    spec = make("rloo", {"reduction": "constant", "constant_tokens": 1})
    assert spec.policy_loss is not None
    (spec.policy_loss(given).loss / len(fed.mask)).sum().backward()
    assert given.logprobs.grad is not None
    np.testing.assert_allclose(
        given.logprobs.grad.numpy(), wanted.gradient[fed.mask != 0], **CLOSE
    )


def test_rloo_off_policy_has_another_ratio(model_path: Path, tmp_path: Path) -> None:
    # TRL: exp of the sum over a sequence; ours: each token's own, as verl
    fed, _ = rloo_case(on_policy=False)
    wanted = ask_rloo(model_path, tmp_path, fed, beta=0.0, epsilon=0.9)
    difference = (fed.log_prob.detach() - fed.old_log_prob).numpy() * fed.mask
    product = np.exp(difference.sum(1))
    np.testing.assert_allclose(wanted.loss, -(product * wanted.advantages).mean(), **CLOSE)


def test_rloo_takes_the_kl_off_the_reward_of_a_sequence(
    model_path: Path, tmp_path: Path
) -> None:
    # TRL: the sum of k1 over a sequence, before the baseline; ours: an estimate by token in the
    # loss, or off the token's reward in remax, ppo and reinforce_plus_plus
    fed, other = rloo_case(on_policy=True)
    wanted = ask_rloo(model_path, tmp_path, fed, beta=0.2)
    kl = ((fed.old_log_prob.numpy() - other) * fed.mask).sum(1)
    shaped = (REWARDS - 0.2 * kl).reshape(-1, GROUP_SIZE)
    baseline = (shaped.sum(1, keepdims=True) - shaped) / (GROUP_SIZE - 1)
    np.testing.assert_allclose((shaped - baseline).reshape(-1), wanted.advantages, **CLOSE)
