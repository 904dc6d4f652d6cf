"""Optimizers: builds them from their specification, and computes their learning rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from agentrl.training.optim.muon import Muon
from agentrl.training.optim.optim_spec import OptimSpec


def learning_rate_factor(spec: OptimSpec, step: int, total_steps: int | None) -> float:
    """The share of the learning rate in optimizer step ``step``, counted from 0; a pure function,
    so resume is exact.

    Rises linearly over ``warmup_steps`` and stays until ``flat_fraction`` of ``total_steps``. Then
    it decays as transformers' ``get_linear_schedule_with_warmup`` and its cosine do: the first step
    has the peak, and ``final_fraction`` is that of the step after the last.

    Raises:
        ConfigError: the schedule decays, and ``total_steps`` is None.
    """
    rise = min(1.0, (step + 1) / spec.warmup_steps) if spec.warmup_steps else 1.0
    if spec.schedule == "constant":
        return rise
    if total_steps is None:
        raise spec.broken(
            "schedule", f"={spec.schedule!r} needs total_steps, got None; set it"
        )
    start = max(spec.flat_fraction * total_steps, float(spec.warmup_steps))
    length = max(total_steps - start, 1.0)
    progress = min(max((step - start) / length, 0.0), 1.0)
    left = (
        1.0 - progress
        if spec.schedule == "linear"
        else 0.5 * (1.0 + math.cos(math.pi * progress))
    )
    return rise * (spec.final_fraction + (1.0 - spec.final_fraction) * left)


def build_optimizers(
    spec: OptimSpec, model: nn.Module, head: nn.Module
) -> list[torch.optim.Optimizer]:
    """One optimizer, or Muon and AdamW side by side; every group knows its top learning rate as
    ``base_lr``.

    Args:
        spec: what to build.
        model: its parameters may be sharded.
        head: the output layer, whose matrix is never Muon's.
    """
    # the matrices that take one hidden vector to another: every linear layer's but the output's,
    # and experts', which families keep as one stack
    hidden = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if spec.name == "muon"
        and isinstance(module, nn.Linear)
        and module is not head
        and module.weight is not getattr(head, "weight", None)
    }
    hidden |= {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if spec.name == "muon" and type(module).__name__.endswith("Experts")
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 3
    }
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, parameter in model.named_parameters():
        # An adapter's model has others that are frozen.
        if parameter.requires_grad:
            (matrices if name in hidden else rest).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [{"params": rest, "base_lr": spec.lr}],
            lr=spec.lr,
            betas=(spec.betas[0], spec.betas[1]),
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )
    ]
    if matrices:
        optimizers.append(
            Muon(
                [{"params": matrices, "base_lr": spec.muon_lr}],
                lr=spec.muon_lr,
                momentum=spec.muon_momentum,
                weight_decay=spec.muon_weight_decay,
            )
        )
    return optimizers
