"""Optimizers and their learning-rate schedule, as one picklable record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.training.optim.muon import Muon

__all__ = ["OptimSpec", "build_optimizers", "learning_rate_factor"]


@dataclass(frozen=True, slots=True)
class OptimSpec:
    """How weights move.

    Args:
        name: ``adamw`` for everything, or ``muon`` for hidden matrices with AdamW for the rest.
        lr: AdamW's learning rate at the top of the schedule.
        betas, eps, weight_decay: AdamW's (arXiv:1711.05101).
        muon_lr, muon_momentum, muon_weight_decay: Muon's own.
        schedule: what follows the flat part: nothing, a line, or half a cosine.
        warmup_steps: optimizer steps of a linear rise from 0.
        total_steps: where the schedule ends; needed unless it is constant.
        flat_fraction: share of ``total_steps`` before the decay begins, warm-up included.
        final_fraction: share of the learning rate left at the end.
        clip_grad_norm: the largest norm of the whole gradient; None never clips.
    """

    name: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    muon_weight_decay: float = 0.01
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    flat_fraction: float = 0.0
    final_fraction: float = 0.0
    clip_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        decays = self.schedule != "constant"
        rules = (
            ("name", self.name in ("adamw", "muon"), "adamw or muon"),
            ("lr", 0 <= self.lr < math.inf, "finite and at least 0"),
            (
                "betas",
                len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
                "two numbers in [0, 1)",
            ),
            ("eps", 0 < self.eps < math.inf, "finite and above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "finite and at least 0"),
            ("muon_lr", 0 <= self.muon_lr < math.inf, "finite and at least 0"),
            ("muon_momentum", 0 <= self.muon_momentum < 1, "in [0, 1)"),
            ("muon_weight_decay", 0 <= self.muon_weight_decay < math.inf, "finite and at least 0"),
            (
                "schedule",
                self.schedule in ("constant", "linear", "cosine"),
                "constant, linear or cosine",
            ),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            (
                "total_steps",
                not decays or (self.total_steps or 0) >= 1,
                f"set for schedule={self.schedule}",
            ),
            ("flat_fraction", 0 <= self.flat_fraction <= 1, "in [0, 1]"),
            ("final_fraction", 0 <= self.final_fraction <= 1, "in [0, 1]"),
            (
                "clip_grad_norm",
                self.clip_grad_norm is None or self.clip_grad_norm > 0,
                "above 0, or none",
            ),
        )
        for field, holds, rule in rules:
            if not holds:
                raise ConfigError(
                    f"optim.{field} must be {rule}, got {getattr(self, field)!r}; change it"
                )


def learning_rate_factor(spec: OptimSpec, step: int) -> float:
    """The share of the learning rate in optimizer step ``step``, counted from 0; a pure function, so resume is exact.

    Rises linearly over ``warmup_steps``, stays until ``flat_fraction`` of ``total_steps``, and decays to
    ``final_fraction`` at the last step, where it stays.
    """
    rise = min(1.0, (step + 1) / spec.warmup_steps) if spec.warmup_steps else 1.0
    if spec.schedule == "constant" or spec.total_steps is None:
        return rise
    start = max(spec.flat_fraction * spec.total_steps, float(spec.warmup_steps))
    length = max(spec.total_steps - start, 1.0)
    progress = min(max((step + 1 - start) / length, 0.0), 1.0)
    left = (
        1.0 - progress if spec.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    )
    return rise * (spec.final_fraction + (1.0 - spec.final_fraction) * left)


def build_optimizers(
    spec: OptimSpec, model: nn.Module, head: nn.Module
) -> list[torch.optim.Optimizer]:
    """One optimizer, or Muon and AdamW side by side; every group knows its top learning rate as ``base_lr``.

    Args:
        spec: what to build.
        model: its parameters may be sharded.
        head: the output layer, whose matrix is never Muon's.
    """
    named = dict(model.named_parameters())
    hidden = _hidden_matrices(model, head) if spec.name == "muon" else set()
    rest = [parameter for name, parameter in named.items() if name not in hidden]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [{"params": rest, "base_lr": spec.lr}],
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )
    ]
    if hidden:
        matrices: list[Tensor] = [parameter for name, parameter in named.items() if name in hidden]
        optimizers.append(
            Muon(
                [{"params": matrices, "base_lr": spec.muon_lr}],
                lr=spec.muon_lr,
                momentum=spec.muon_momentum,
                weight_decay=spec.muon_weight_decay,
            )
        )
    return optimizers


def _hidden_matrices(model: nn.Module, head: nn.Module) -> set[str]:
    """Names of the matrices that take one hidden vector to another: every linear layer's but the output layer's."""
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and module.weight is not getattr(head, "weight", None)
    }
