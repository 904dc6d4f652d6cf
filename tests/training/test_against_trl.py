"""The policy's loss and gradient are those of TRL's GRPO trainer on the same batch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agentrl.types import Batch
from tests.training.harness import gradients, make_actor, make_batch, prepared, update

LENGTHS = (13, 9, 21, 6, 17, 11, 5, 30)
KL_COEF, CAP = 0.3, 2.0


def batch_of(actor: Any) -> Batch:
    """Old, reference and rollout logprobs that lie apart, as after stale rollouts and a first
    update.
    """
    random = np.random.default_rng(3)
    batch = prepared(actor, make_batch(LENGTHS))
    assert batch.old_logprobs is not None
    mask = batch.loss_mask

    def near(spread: float) -> np.ndarray:
        return ((batch.old_logprobs + random.normal(0, spread, mask.size)) * mask).astype(
            np.float32
        )

    return replace(
        batch, old_logprobs=near(0.4), rollout_logprobs=near(0.6), ref_logprobs=near(0.8)
    )


def padded(column: np.ndarray, cu_seqlens: np.ndarray) -> Tensor:
    # without the first token
    rows = [torch.from_numpy(column[a + 1 : b].copy()) for a, b in pairwise(cu_seqlens)]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def theirs(
    model_path: str, batch: Batch, delta: float | None
) -> tuple[float, dict[str, Tensor]]:
    """The loss and gradient of TRL's own function, on transformers' padded forward."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = [
        torch.from_numpy(batch.token_ids[a:b].astype(np.int64))
        for a, b in pairwise(batch.cu_seqlens)
    ]
    tokens = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    attention = nn.utils.rnn.pad_sequence(
        [torch.ones(len(row), dtype=torch.int64) for row in ids], batch_first=True
    )

    def logprobs(model: Any, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        all_logprobs = (
            model(input_ids=tokens, attention_mask=attention).logits[:, :-1].log_softmax(-1)
        )
        return (
            all_logprobs.gather(-1, tokens[:, 1:, None])[..., 0],
            torch.zeros_like(tokens[:, 1:]).float(),
            None,
        )

    columns = {
        name: padded(getattr(batch, name), batch.cu_seqlens)
        for name in (
            "old_logprobs",
            "rollout_logprobs",
            "ref_logprobs",
            "advantages",
            "loss_mask",
        )
    }
    ratio = torch.exp(columns["old_logprobs"] - columns["rollout_logprobs"]).clamp(max=CAP)
    trainer = _Trainer(
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False),
        model=model,
        _get_per_token_logps_and_entropies=logprobs,
        accelerator=SimpleNamespace(
            gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        ),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        beta=KL_COEF,
        epsilon_low=0.2,
        epsilon_high=0.28,
        importance_sampling_level="token",
        loss_type="bnpo",
        top_entropy_quantile=1.0,
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
    )
    asked = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": attention[:, :1],
        "completion_ids": tokens[:, 1:],
        "completion_mask": columns["loss_mask"].long(),
        "advantages": columns["advantages"],
        "old_per_token_logps": columns["old_logprobs"],
        "ref_per_token_logps": columns["ref_logprobs"],
        "importance_sampling_ratio": ratio,
    }
    loss = trl.GRPOTrainer._compute_loss(trainer, model.train(), asked)
    loss.backward()
    return loss.item(), {
        f"hf.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None
    }


class _Trainer(SimpleNamespace):
    """What TRL's function reads of its trainer; what is not named here is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@pytest.mark.parametrize("dual", [None, 1.5])
def test_a_corrected_loss_with_a_kl_term_has_trls_gradient(
    model_path: str, dual: float | None
) -> None:
    settings = {
        "kl_coef": KL_COEF,
        "kl_cap": None,
        "rollout_correction": {"level": "token", "cap": CAP},
        "clip_dual": dual,
    }
    actor = make_actor(model_path, settings=settings)
    batch = batch_of(actor)
    wanted, gradient = theirs(model_path, batch, dual)

    stats = update(actor, batch)

    assert stats["policy/loss"].mean == pytest.approx(wanted, rel=1e-5)
    found = gradients(actor)
    assert found.keys() == gradient.keys()
    for name, expected in gradient.items():
        torch.testing.assert_close(
            found[name],
            expected,
            rtol=0.0,
            atol=2e-5 * expected.abs().max().item(),
            msg=name,
        )


def test_the_loss_is_told_in_its_parts(model_path: str) -> None:
    actor = make_actor(
        model_path, settings={"kl_coef": KL_COEF, "rollout_correction": {"level": "token"}}
    )
    means = update(actor, batch_of(actor)).means()
    assert means["policy/loss"] == pytest.approx(
        means["policy/pg_loss"] + KL_COEF * means["policy/kl_loss"], rel=1e-9
    )
    # token_mean: the same mean
    assert means["policy/kl_loss"] == pytest.approx(means["policy/kl_ref"], rel=1e-6)
