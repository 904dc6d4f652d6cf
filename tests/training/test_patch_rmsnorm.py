"""The trainer's RMSNorm: the numbers of transformers', in fewer passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.trunk import RMSNorm, patch_rmsnorm
from tests.training.harness import write_model
from tests.whole_models import load_policy


class ShiftedNorm(Qwen3RMSNorm):
    """As families write it whose weights are about 0."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        answer: Tensor = super().forward(hidden_states)
        return answer + answer / self.weight


def theirs(width: int) -> Any:
    norm: Any = Qwen3RMSNorm(width, eps=1e-6)
    nn.init.normal_(
        norm.weight, mean=1.0, std=0.2, generator=torch.Generator().manual_seed(1)
    )
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_gradients_are_transformers_own(dtype: torch.dtype) -> None:
    norm = theirs(16).to(dtype)
    ours = RMSNorm(nn.Parameter(norm.weight.detach().clone()), norm.variance_epsilon)
    generator = torch.Generator().manual_seed(0)
    base = torch.randn((2, 3, 5, 16), generator=generator)
    weights = torch.randn((2, 5, 3, 16), generator=generator)
    answers = []
    for module in (norm, ours):
        hidden = base.to(dtype).requires_grad_()
        normed = module(hidden).transpose(1, 2)  # its gradient comes transposed
        (normed.float() * weights).sum().backward()
        answers.append((normed.detach(), hidden.grad, module.weight.grad))
    exact = dtype is torch.float32
    for found, expected in zip(answers[1], answers[0], strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(
            found, expected, rtol=1e-5 if exact else 3e-2, atol=1e-5 if exact else 6e-2
        )


def test_a_row_of_zeros_stays_finite() -> None:
    hidden = torch.zeros((1, 4), requires_grad=True)
    RMSNorm(nn.Parameter(torch.ones(4)), 1e-6)(hidden).sum().backward()
    assert hidden.grad is not None
    assert bool(torch.isfinite(hidden.grad).all())


def test_a_models_norms_are_replaced_and_its_names_stay(tmp_path: Path) -> None:
    model = load_policy(ModelSpec(str(write_model(tmp_path))))
    assert not any(isinstance(module, Qwen3RMSNorm) for module in model.modules())
    assert "hf.model.layers.0.self_attn.q_norm.weight" in dict(model.named_parameters())


def test_a_norm_that_differs_is_kept() -> None:
    model = nn.Sequential(ShiftedNorm(8), Qwen3RMSNorm(8))
    patch_rmsnorm(model)
    assert [type(module) for module in model] == [ShiftedNorm, RMSNorm]


def test_a_model_for_a_gpu_keeps_its_own_norms(tmp_path: Path) -> None:
    model = load_policy(
        ModelSpec(str(write_model(tmp_path))), device=torch.device("cuda", 0)
    )
    assert not any(isinstance(module, RMSNorm) for module in model.modules())
