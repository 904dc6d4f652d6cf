"""Optimizer specification: how weights move; also the section ``optim`` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrl.types.section import (
    ActsWith,
    Decay,
    Fraction,
    Listed,
    Natural,
    Positive,
    Section,
    Weight,
)

_OF_MUON = ActsWith("name", only=("muon",))
_OF_A_DECAY = ActsWith("schedule", but=("constant",))


class OptimSpec(Section):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "muon"] = "adamw"
    """``muon`` takes the hidden matrices, experts' too, and leaves the rest to AdamW."""
    lr: Weight = 1e-6
    """Peak learning rate (of AdamW's parameters)."""
    betas: Listed[Decay] = Field(default=(0.9, 0.95), min_length=2, max_length=2)
    """Decay of AdamW's two moments."""
    eps: Positive = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: Weight = 0.0
    """Decoupled weight decay (arXiv:1711.05101)."""
    clip_grad_norm: Positive | None = 1.0
    """Largest norm of the whole gradient; null clips nothing."""
    muon_lr: Annotated[Weight, _OF_MUON] = 0.02
    """Peak learning rate of Muon's matrices."""
    muon_momentum: Annotated[Decay, _OF_MUON] = 0.95
    """Muon's momentum."""
    muon_weight_decay: Annotated[Weight, _OF_MUON] = 0.01
    """Decoupled weight decay of Muon's matrices."""
    warmup_steps: Natural = 0
    """Optimizer steps of linear rise: the first has its share of the peak, the last the peak."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the rise and the flat part: from the peak down to ``final_fraction``, which
    stands behind the last step."""
    flat_fraction: Annotated[Fraction, _OF_A_DECAY] = 0.0
    """Share of the stage's optimizer steps before the decay begins, the rise included."""
    final_fraction: Annotated[Fraction, _OF_A_DECAY] = 0.0
    """Learning rate behind the last step, as a share of the peak."""
