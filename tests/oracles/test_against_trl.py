"""Losses and advantages against TRL 1.16, values and gradients.

TRL's own functions run on the same ragged batch as verl's, in float64. Where TRL defines a thing
otherwise, the test says so and compares what is common:

- its means over rows count a row without a trained token, ours leave it out: ``TRL_ROWS``;
- its k3 has no cap, and with ``use_bias_correction_kl`` the ratio that weighs it has a gradient, as
  ours with ``kl_weighted``;
- CISPO's bound is the ratio's, not its distance from 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from torch import Tensor

from agentrl.algorithms import PolicyInputs
from agentrl.algorithms import make_algorithm as make
from agentrl.algorithms.functions.credit import group_advantages, leave_one_out
from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import load_object
from tests.oracles.test_against_verl import (
    CLOSE,
    MASK,
    PLACES,
    ROWS,
    Case,
    case,
    inputs,
    scattered,
    weights_of,
)

__all__ = ["case"]  # a fixture

pytestmark = pytest.mark.slow

F64 = np.ndarray
ROOT = Path(__file__).parents[2]
TRL_ROWS = np.count_nonzero(MASK.any(1)) / len(MASK)


class TrainerNamespace(SimpleNamespace):
    """What TRL's loss reads of its trainer; what is not named is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def theirs(case: Case, settings: Mapping[str, Any], **columns: F64) -> tuple[float, F64]:
    """TRL's loss, and its gradient by the logprobs of ``[6, 9]`` tokens."""
    logprobs = torch.from_numpy(case.log_prob).requires_grad_()
    plain = {
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "importance_sampling_level": "token",
        "top_entropy_quantile": 1.0,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": MASK.shape[1],
    }
    arguments = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    given = {key: settings[key] for key in settings if key not in TRL_ARGS}
    arguments |= {key: settings[key] for key in settings if key in TRL_ARGS}
    trainer = TrainerNamespace(
        args=SimpleNamespace(**arguments),
        model=torch.nn.Identity().train(),
        accelerator=SimpleNamespace(
            gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            logprobs,
            torch.zeros_like(logprobs),
            None,
        ),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        use_vllm="importance_sampling_ratio" in columns,
        vllm_importance_sampling_correction=True,
        **(plain | given),
    )
    ids = torch.zeros(MASK.shape, dtype=torch.int64)
    asked = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": torch.from_numpy(MASK).long(),
        "advantages": torch.from_numpy(case.advantages),
        "old_per_token_logps": torch.from_numpy(case.old_log_prob),
        "num_items_in_batch": torch.tensor(MASK.sum()),
        **{name: torch.from_numpy(column) for name, column in columns.items()},
    }
    loss = trl.GRPOTrainer._compute_loss(trainer, trainer.model, asked)
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.numpy()


TRL_ARGS = (
    "delta",
    "use_bias_correction_kl",
    "sapo_temperature_pos",
    "sapo_temperature_neg",
)

# ours, our settings, our reduction; TRL's settings; whether TRL's mean counts empty rows
LOSSES: Mapping[str, tuple[str, dict[str, Any], str, dict[str, Any], bool]] = {
    "grpo": ("grpo", {}, "trajectory_mean", {"loss_type": "grpo"}, True),
    "bnpo": ("grpo", {}, "token_mean", {"loss_type": "bnpo"}, False),
    "dapo": ("grpo", {}, "token_mean", {"loss_type": "dapo"}, False),
    "dr_grpo": ("grpo", {}, "constant", {"loss_type": "dr_grpo"}, True),
    "delta": (
        "grpo",
        {"clip_dual": 4.0},
        "token_mean",
        {"loss_type": "bnpo", "delta": 4.0},
        False,
    ),
    "gspo": (
        "gspo",
        {"clip_low": 0.2, "clip_high": 0.28},
        "trajectory_mean",
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        True,
    ),
    "cispo": (
        "cispo",
        {"ratio_floor": 0.0, "ratio_cap": 5.0},
        "token_mean",
        {"loss_type": "cispo", "epsilon_high": 5.0},
        False,
    ),
    "sapo": (
        "sapo",
        {"tau_positive": 1.0, "tau_negative": 1.05},
        "trajectory_mean",
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
        True,
    ),
}


def ours(
    given: PolicyInputs, name: str, settings: dict[str, Any], reduction: str, factor: Any = 1.0
) -> tuple[float, F64]:
    """Our loss with its terms, the correction taken as given, and its gradient."""
    found = make(name, settings).policy_loss(given)  # type: ignore[misc]
    loss = found.loss * factor
    for term in found.terms.values():
        loss = loss + term.coef * term.values
    weight = weights_of(reduction, MASK.shape[1] if reduction == "constant" else None)
    total = (loss * weight).sum()
    total.backward()
    assert given.logprobs.grad is not None
    return total.item(), scattered(given.logprobs.grad)


@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(case: Case, name: str) -> None:
    own, settings, reduction, trl_settings, counts_empty_rows = LOSSES[name]
    expected, gradient = theirs(case, trl_settings)
    scale = TRL_ROWS if counts_empty_rows else 1.0

    loss, found = ours(inputs(case), own, settings, reduction)

    np.testing.assert_allclose(loss * scale, expected, **CLOSE)
    np.testing.assert_allclose(found * scale, gradient, **CLOSE)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_with_a_kl_term(case: Case, weighted: bool) -> None:
    trl_settings = {"loss_type": "bnpo", "beta": 0.3, "use_bias_correction_kl": weighted}
    expected, gradient = theirs(case, trl_settings, ref_per_token_logps=case.other)
    settings = {"kl_coef": 0.3, "kl_cap": None, "kl_weighted": weighted}

    given = inputs(case, ref_logprobs=case.flat("other"))
    loss, found = ours(given, "grpo", settings, "token_mean")

    np.testing.assert_allclose(loss, expected, **CLOSE)
    np.testing.assert_allclose(found, gradient, **CLOSE)


def test_weights_of_a_correction_multiply_the_loss_and_not_the_kl(case: Case) -> None:
    ratio = np.exp(np.random.default_rng(5).normal(0, 0.5, MASK.shape)).clip(max=2.0)
    expected, gradient = theirs(
        case,
        {"loss_type": "bnpo", "beta": 0.3},
        ref_per_token_logps=case.other,
        importance_sampling_ratio=ratio,
    )
    given = inputs(case, ref_logprobs=case.flat("other"))
    factor = torch.from_numpy(ratio[ROWS, PLACES].copy())
    loss, found = ours(given, "grpo", {"kl_coef": 0.3, "kl_cap": None}, "token_mean", factor)

    np.testing.assert_allclose(loss, expected, **CLOSE)
    np.testing.assert_allclose(found, gradient, **CLOSE)


# --- advantages: TRL's lie within its rollouts, so a real trainer plays

REWARDS = (0.0, 1.0, 1.0, 0.25, 2.0, 2.0, 2.0, 2.0)
GROUPS = np.repeat([0, 1], 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trl") / "model"
    demonstrations = load_object("examples/code/warmup.py:demonstrations", ROOT)
    build_tiny_model(folder, demonstrations(0), num_demonstrations=50, vocab_size=320)
    return str(folder)


def played(trainer_class: Any, config: Any, model: str) -> Tensor:
    """The advantages that a trainer gives eight completions of two prompts."""
    rows = [{"prompt": "1 2 3"}, {"prompt": "4 5"}]
    trainer = trainer_class(
        model=model,
        reward_funcs=lambda completions, **_: list(REWARDS)[: len(completions)],
        args=config,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.model.train()
    made = trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    return made["advantages"].double()


def settings_of(folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "beta": 0.0,
        **settings,
    }


@pytest.mark.parametrize(("theirs_", "scale"), [("group", "std"), ("none", "none")])
def test_group_advantages(model: str, tmp_path: Path, theirs_: str, scale: Any) -> None:
    config = trl.GRPOConfig(**settings_of(tmp_path, scale_rewards=theirs_))
    expected = played(trl.GRPOTrainer, config, model)

    found = group_advantages(np.array(REWARDS), GROUPS, scale_rewards=scale, eps=1e-4)

    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-6)


def test_leave_one_out(model: str, tmp_path: Path) -> None:
    config = trl.RLOOConfig(**settings_of(tmp_path, normalize_advantages=False))
    expected = played(trl.RLOOTrainer, config, model)

    found = leave_one_out(np.array(REWARDS), GROUPS)

    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-6)
