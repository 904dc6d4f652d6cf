"""Score model: a sequence classifier with one label that scores each sample of a packed row.

Shapes: T packed tokens, M samples of a row, D width.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from agentrl.errors import ConfigError, DataError
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import (
    CPU,
    ModelSpec,
    PackedModel,
    attention_of,
    open_pretrained,
)
from agentrl.training.models.twin import check_twin
from agentrl.training.parallel.collectives import gather_parts

Scores = TypeVar("Scores", bound="ScoreModel")


class ScoreModel(PackedModel):
    """A trunk, then one number of the hidden state at each sample's last token."""

    new_head_power: ClassVar[float] = 0.5
    """k of a new head's deviation 1/(D + 1)^k (1/2: arXiv:2009.01325, app. B)."""

    @property
    def head(self) -> nn.Linear:
        """The layer that converts a hidden state to a score."""
        head = self.hf.score
        assert isinstance(head, nn.Linear), "open_scores refuses others"
        return head

    def forward(self, packed: Packed) -> Tensor:
        """Scores of the samples of a packed row, in its order.

        A filler returns the score of its one token; the caller weighs it with 0.

        Returns:
            ``[max(M, 1)]`` scores, at least float32.
        """
        hidden = self.hidden(
            packed.token_ids, packed.positions, packed.spans, packed.ends, packed.host_ends
        )
        scores = self.answers(hidden)[:, 0]
        # FSDP hooks what it returns, and wants no view.
        return self._ends(scores, packed).clone()

    def _ends(self, numbers: Tensor, packed: Packed) -> Tensor:
        """Numbers at the samples' last tokens in this rank's part of a row, as those of the row."""
        if packed.end_order is None or not packed.rows.size:
            return numbers
        assert self.sequence is not None, "slices are of a sequence group"
        parts = gather_parts(numbers, packed.end_counts, self.sequence)
        return parts.index_select(0, packed.end_order)


class ValueModel(ScoreModel):
    """A trunk, then one number of the hidden state before each trained token, and of that at each
    sample's last token."""

    new_head_power = 1.0
    """Values start near 0: a new critic that says anything else, sure of itself, misleads the
    policy until it has unlearned that."""

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Values of a packed row. A filler returns those of its one token.

        Returns:
            ``[max(N, 1)]``, at least float32, of the states before trained tokens, and
            ``[max(M, 1)]`` of those behind the samples.
        """
        before = packed.logit_rows[packed.logit_of]
        rows = torch.cat([before, packed.ends])
        host_rows = np.concatenate([packed.before, packed.host_ends])
        hidden = self.hidden(
            packed.token_ids, packed.positions, packed.spans, rows, host_rows
        )
        numbers = self.answers(hidden)[:, 0]
        values, final = numbers[: before.numel()], numbers[before.numel() :]
        if packed.counts and packed.source.size:
            assert self.sequence is not None, "slices are of a sequence group"
            values = gather_parts(values, packed.counts, self.sequence)
        return values.clone(), self._ends(final, packed).clone()


def open_scores(
    kind: type[Scores],
    spec: ModelSpec,
    device: torch.device = CPU,
    *,
    head_seed: int | None = None,
) -> Scores:
    """Builds the reward model or critic of a Hugging Face folder
    (``AutoModelForSequenceClassification``, one label); ``PackedModel.fill`` reads its weights.

    Args:
        kind: of the model.
        spec: the folder, and how its model runs. A causal model's folder has no head, and gets one
            from ``head_seed``.
        device: the device that the model will run on.
        head_seed: the seed of a new head's weights, which are normal with deviation 1/sqrt(D + 1)
            (arXiv:2009.01325, app. B), a critic's 1/(D + 1); None refuses a folder without a head.

    Raises:
        DataError: the folder holds no loadable reward model, or weights of it are missing.
        ConfigError: the family cannot be trained packed, or scores sequences in another way.
    """
    auto = AutoModelForSequenceClassification
    hf, weights, missing = open_pretrained(
        auto, spec, "a sequence classifier", device, num_labels=1
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
        values = _new_head(head, head_seed, kind.new_head_power)
        if weights is None:
            head.load_state_dict(values)
        else:
            weights.new.update({f"score.{name}": value for name, value in values.items()})
    model = kind(hf, attention_of(hf), device)
    model.weights = weights
    check_twin(
        model, auto, named, "does not score the last token by its layer `score` alone"
    )
    return model


def _new_head(head: nn.Linear, seed: int, power: float) -> dict[str, Tensor]:
    """Weights of a new head, float32, equal on every rank."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(head.weight.shape, dtype=torch.float32, device="cpu")
    nn.init.normal_(drawn, 0.0, (head.in_features + 1) ** -power, generator)
    values = {"weight": drawn}
    if head.bias is not None:
        values["bias"] = torch.zeros(head.bias.shape)
    return values
