"""Score model: a sequence classifier with one label that scores each sample of a packed row.

Shapes: T packed tokens, M samples of a row, D width.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from agentrl.errors import ConfigError, DataError
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import (
    CPU,
    FIRST_ROW,
    ModelSpec,
    PackedModel,
    at_least_float32,
    load_pretrained,
)

Scores = TypeVar("Scores", bound="ScoreModel")


class ScoreModel(PackedModel):
    """A trunk, then one number of the hidden state at each sample's last token."""

    @property
    def head(self) -> nn.Linear:
        """The layer that converts a hidden state to a score."""
        head = self.hf.score
        assert isinstance(head, nn.Linear), "load_score_model refuses others"
        return head

    def forward(self, packed: Packed) -> Tensor:
        """Scores of the samples of a packed row, in its order.

        A filler returns the score of its one token, so that every rank runs the same collectives
        forward and backward; the caller weighs it with 0.

        Returns:
            ``[max(M, 1)]`` scores, at least float32.
        """
        ends, host_ends = packed.ends, packed.host_ends
        if not host_ends.size:
            ends, host_ends = ends.new_zeros(1), FIRST_ROW
        hidden = self.hidden(packed.token_ids, packed.positions, packed.spans, ends, host_ends)
        scores = at_least_float32(self.head(hidden))
        return scores[:, 0].clone()  # FSDP hooks what it returns, and wants no view


class ValueModel(ScoreModel):
    """A trunk, then one number of the hidden state before each trained token, and of that at each
    sample's last token."""

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Values of a packed row. A filler returns those of its one token.

        Returns:
            ``[max(N, 1)]``, at least float32, of the states before trained tokens, and
            ``[max(M, 1)]`` of those behind the samples.
        """
        one = packed.ends.new_zeros(1)
        ends = packed.ends if packed.ends.numel() else one
        before = packed.logit_rows[packed.logit_of] if packed.targets.numel() else one
        rows = torch.cat([before, ends])
        parts = [part for part in (packed.before, packed.host_ends) if part.size]
        host_rows = np.concatenate(parts if len(parts) == 2 else [*parts, FIRST_ROW])
        hidden = self.hidden(packed.token_ids, packed.positions, packed.spans, rows, host_rows)
        values = at_least_float32(self.head(hidden))[:, 0]
        return values[: before.numel()].clone(), values[before.numel() :].clone()


def load_value_model(
    spec: ModelSpec, device: torch.device = CPU, *, head_seed: int | None = None
) -> ValueModel:
    """Loads a critic; see ``load_score_model``."""
    return _load(ValueModel, spec, device, head_seed)


def load_score_model(
    spec: ModelSpec, device: torch.device = CPU, *, head_seed: int | None = None
) -> ScoreModel:
    """Loads a reward model from a Hugging Face folder (``AutoModelForSequenceClassification``, one
    label).

    Args:
        spec: the folder, and how its model runs. A causal model's folder has no head, and gets one
            from ``head_seed``.
        device: the device that the model will run on.
        head_seed: the seed of a new head's weights, which are normal with deviation 1/sqrt(D + 1)
            (arXiv:2009.01325, app. B); None refuses a folder without a head.

    Raises:
        DataError: the folder holds no loadable reward model, or weights of it are missing.
        ConfigError: the family cannot be trained packed, or scores sequences in another way.
    """
    return _load(ScoreModel, spec, device, head_seed)


def _load(
    kind: type[Scores], spec: ModelSpec, device: torch.device, head_seed: int | None
) -> Scores:
    hf, missing = load_pretrained(
        AutoModelForSequenceClassification, spec, "a sequence classifier", device, num_labels=1
    )
    named = f"{spec.setting}={spec.model_path!r}"
    head = getattr(hf, "score", None)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{named}: {type(hf).__name__} has no linear layer `score` on its "
            f"last token, as reward models need; choose another family"
        )
    new = {f"score.{name}" for name, _ in head.named_parameters()}
    if missing - new or (missing and head_seed is None):
        raise DataError(
            f"{named} lacks weights of a reward model ({sorted(missing)[0]!r}); "
            f"name a folder that a reward_model stage wrote, or another sequence classifier with "
            f"one label"
        )
    if missing and head_seed is not None:
        generator = torch.Generator().manual_seed(head_seed)
        drawn = torch.empty(head.weight.shape, dtype=torch.float32)
        nn.init.normal_(drawn, 0.0, 1.0 / math.sqrt(head.in_features + 1), generator)
        head.weight.data.copy_(drawn)
        if head.bias is not None:
            nn.init.zeros_(head.bias)
    model = kind(hf, spec.attention, device)
    text = model.config.get_text_config()
    tokens = [token for token in range(8) if token != text.pad_token_id][:4]
    ids = torch.tensor(tokens) % int(text.vocab_size)
    if model.check(ids, torch.tensor([3]), lambda score: score):
        return model
    raise ConfigError(
        f"{named}: {type(hf).__name__} does not score the last token by its layer "
        "`score` alone; choose another family"
    )
