"""Schedules, clipping and Muon, by hand."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from agentrl.errors import ConfigError
from agentrl.training.fsdp.gradients import clip_gradients
from agentrl.training.optim.muon import Muon, orthogonalize
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers, learning_rate_factor


def factors(spec: OptimSpec, steps: int, total_steps: int | None = None) -> list[float]:
    return [learning_rate_factor(spec, step, total_steps) for step in range(steps)]


def test_a_constant_rate_rises_over_its_warm_up() -> None:
    assert factors(OptimSpec(warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_line_goes_down_to_its_final_fraction_and_stays() -> None:
    spec = OptimSpec(schedule="linear", final_fraction=0.2)
    assert factors(spec, 6, total_steps=4) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_single_step_has_the_whole_rate(schedule: str) -> None:
    assert factors(OptimSpec(schedule=schedule), 1, total_steps=1) == [1.0]


@pytest.mark.parametrize(
    ("warmup", "total"), [(0, 1), (0, 2), (0, 5), (1, 2), (3, 4), (3, 50)]
)
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_decay_is_that_of_transformers(schedule: str, warmup: int, total: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(
        schedule, optimizer, num_warmup_steps=warmup, num_training_steps=total
    ).lr_lambdas[0]
    ours = factors(
        OptimSpec(schedule=schedule, warmup_steps=warmup), total, total_steps=total
    )
    # the rise alone is a step earlier: their first step has a rate of 0, and moves nothing
    wanted = [theirs(step + (step < warmup)) for step in range(total)]
    assert ours == pytest.approx(wanted, abs=1e-12)
    assert min(ours) > 0


def test_a_flat_part_comes_first() -> None:
    # flat through step 5 of 8, then three of four equal parts towards 0
    spec = OptimSpec(schedule="linear", warmup_steps=2, flat_fraction=0.5)
    assert factors(spec, 8, total_steps=8) == pytest.approx(
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    )


def test_half_a_cosine_is_at_the_middle_in_the_middle() -> None:
    spec = OptimSpec(schedule="cosine")
    assert factors(spec, 4, total_steps=4) == pytest.approx(
        [(1 + math.cos(math.pi * k / 4)) / 2 for k in (0, 1, 2, 3)]
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "OptimSpec.lr must be at least 0, got -1.0"),
        ({"betas": (0.9, 1.0)}, "OptimSpec.betas.1 must be less than 1, got 1.0"),
        (
            {"schedule": "step"},
            "OptimSpec.schedule must be 'constant', 'linear' or 'cosine'",
        ),
        ({"clip_grad_norm": 0.0}, "OptimSpec.clip_grad_norm must be more than 0, got 0.0"),
        ({"flat_fraction": 1.5}, "OptimSpec.flat_fraction must be at most 1, got 1.5"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        OptimSpec(**settings)


def test_a_schedule_that_decays_needs_its_end() -> None:
    with pytest.raises(
        ConfigError, match=r"OptimSpec\.schedule='linear' needs total_steps, got None"
    ):
        learning_rate_factor(OptimSpec(schedule="linear"), 0, None)


def with_gradient(*values: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(len(values)))
    parameter.grad = torch.tensor(values)
    return parameter


def test_clipping_scales_the_whole_gradient_to_its_limit() -> None:
    # sqrt(3² + 4²) = 5 over both parameters
    first, second = with_gradient(3.0), with_gradient(0.0, 4.0)
    assert clip_gradients([first, second], 2.5) == pytest.approx(5.0)
    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([1.5], [0.0, 2.0])


@pytest.mark.parametrize("limit", [None, 5.0, math.inf])
def test_a_gradient_within_its_limit_keeps_every_bit(limit: float | None) -> None:
    parameter = with_gradient(3.0, 4.0)
    assert clip_gradients([parameter], limit) == pytest.approx(5.0)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0, 4.0]


def test_a_norm_that_is_not_finite_is_told_and_scales_nothing() -> None:
    parameter = with_gradient(math.nan, 1.0)
    assert math.isnan(clip_gradients([parameter], 1.0))
    assert parameter.grad is not None
    assert parameter.grad[1].item() == 1.0


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_orthogonalizing_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_muon_follows_torchs_up_to_its_bfloat16() -> None:
    torch.manual_seed(0)
    start = torch.randn(24, 16) * 0.1
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = Muon([ours], lr=0.02, momentum=0.95, weight_decay=0.01)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.01)
    for _ in range(3):
        ours.grad = torch.randn(24, 16)
        theirs.grad = ours.grad.clone()
        own.step()
        reference.step()
    moved = (theirs - start).abs().max().item()
    assert (ours - theirs).abs().max().item() < 0.05 * moved


def test_muon_takes_matrices_alone() -> None:
    with pytest.raises(ValueError, match="Muon takes matrices and stacks"):
        Muon([nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9, weight_decay=0.0)


def test_muon_gets_hidden_matrices_and_adamw_the_rest() -> None:
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(10, 4),
            "hidden": nn.Linear(4, 4),
            "norm": nn.LayerNorm(4),
            "head": nn.Linear(4, 10),
        }
    )
    model["head"].weight = model["embed"].weight
    rest, hidden = build_optimizers(OptimSpec(name="muon"), model, model["head"])
    held = [id(p) for group in hidden.param_groups for p in group["params"]]
    assert held == [id(model["hidden"].weight)]
    others = {id(p) for group in rest.param_groups for p in group["params"]}
    assert others == {id(p) for p in model.parameters()} - set(held)
