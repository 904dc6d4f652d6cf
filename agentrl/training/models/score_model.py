"""A sequence classifier with one label, whose forward answers with a score of each sample of a packed row.

Shapes: T packed tokens, M samples of a row, D width.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from agentrl.errors import ConfigError, DataError
from agentrl.training.data.attention import attention_arguments
from agentrl.training.data.packing import Packed
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.packed_model import PackedModel, load_pretrained

__all__ = ["ScoreModel", "load_score_model"]


class ScoreModel(PackedModel):
    """Trunk, then one number of the hidden state at each sample's last token."""

    @property
    def head(self) -> nn.Linear:
        """The layer that makes a score of a hidden state."""
        head = self.hf.score
        assert isinstance(head, nn.Linear), "load_score_model refuses others"
        return head

    def forward(self, packed: Packed) -> Tensor:
        """Scores of the samples of a packed row, in its order.

        A filler answers for its one token, so that every rank runs the same collectives forward and backward; the
        caller weighs it with 0.

        Returns:
            ``[max(M, 1)]`` float32 scores.
        """
        ends = (
            packed.ends
            if packed.ends.numel()
            else torch.zeros(1, dtype=torch.int64, device=packed.ends.device)
        )
        scores: Tensor = self.head(self.hidden(packed, ends)).float()
        return scores[:, 0].clone()  # FSDP hooks what it returns, and wants no view


def load_score_model(
    path: str | Path,
    setting: str,
    *,
    attention: str,
    head_seed: int | None = None,
    gradient_checkpointing: bool = False,
) -> ScoreModel:
    """A reward model from a Hugging Face folder (``AutoModelForSequenceClassification`` with one label).

    Args:
        path: the folder; that of a causal model has no head, and gets one from ``head_seed``.
        setting: what names the folder, for errors.
        attention: ``segments`` or ``flash_attention_2``.
        head_seed: of a new head's weights, which are normal with deviation 1/sqrt(D + 1) (arXiv:2009.01325, app. B);
            None refuses a folder without a head.
        gradient_checkpointing: recompute each layer in the backward.

    Raises:
        DataError: the folder holds no such model that can be loaded, or weights of it are missing.
        ConfigError: the family can't be trained packed, or scores sequences in another way.
    """
    hf, missing = load_pretrained(
        AutoModelForSequenceClassification,
        path,
        setting,
        "a sequence classifier",
        attention=attention,
        gradient_checkpointing=gradient_checkpointing,
        num_labels=1,
    )
    head = getattr(hf, "score", None)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{setting}={str(path)!r}: {type(hf).__name__} has no linear layer `score` on its last token, as reward "
            "models need; choose another family"
        )
    new = {f"score.{name}" for name, _ in head.named_parameters()}
    if missing - new or (missing and head_seed is None):
        raise DataError(
            f"{setting}={str(path)!r} lacks weights of a reward model ({sorted(missing)[0]!r}); name a folder that a "
            "reward_model stage wrote, or another sequence classifier with one label"
        )
    if missing and head_seed is not None:
        _init_head(head, head_seed)
    model = ScoreModel(hf, attention)
    if attention != "flash_attention_2":  # which has no CPU kernel; the family's answer is the same
        _check_score(model, setting, str(path))
    return model


@torch.no_grad()
def _init_head(head: nn.Linear, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head.weight.normal_(0.0, 1.0 / math.sqrt(head.in_features + 1), generator=generator)
    if head.bias is not None:
        head.bias.zero_()


@torch.no_grad()
def _check_score(model: ScoreModel, setting: str, path: str) -> None:
    """Compares trunk, head and last token with the model's own answer."""
    text = model.config.get_text_config()
    ids = torch.tensor([token for token in range(8) if token != text.pad_token_id][:4]) % int(
        text.vocab_size
    )
    arguments = attention_arguments(model.attention, [Span(ROOT, 0, 4)], ids.device)
    places = torch.arange(4)[None]
    own = model.hf(input_ids=ids[None], position_ids=places, use_cache=False, **arguments).logits[
        0, 0
    ]
    trunk = model.hf.base_model(  # type: ignore[operator]
        input_ids=ids[None], position_ids=places, use_cache=False, **arguments
    ).last_hidden_state[0]
    if not torch.allclose(own, model.head(trunk[-1])[0], rtol=1e-4, atol=1e-4, equal_nan=True):
        raise ConfigError(
            f"{setting}={path!r}: {type(model.hf).__name__} does not score the last token by its layer `score` alone; "
            "choose another family"
        )
