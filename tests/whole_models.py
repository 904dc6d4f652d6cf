"""Models of a folder, whole and filled, as no rank needs them."""

from __future__ import annotations

import torch

from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import PolicyModel, open_policy
from agentrl.training.models.score_model import (
    ScoreModel,
    ValueModel,
    open_scores,
)

CPU = torch.device("cpu")


def load_policy(spec: ModelSpec, device: torch.device = CPU) -> PolicyModel:
    model = open_policy(spec, device)
    model.fill(CPU)
    return model


def load_value_model(
    spec: ModelSpec, device: torch.device = CPU, *, head_seed: int | None = None
) -> ValueModel:
    model = open_scores(ValueModel, spec, device, head_seed=head_seed)
    model.fill(CPU)
    return model


def load_score_model(
    spec: ModelSpec, device: torch.device = CPU, *, head_seed: int | None = None
) -> ScoreModel:
    model = open_scores(ScoreModel, spec, device, head_seed=head_seed)
    model.fill(CPU)
    return model
