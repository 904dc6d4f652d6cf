"""A causal language model whose forward answers with logprobs of chosen tokens, never with whole logits.

Shapes: T packed tokens, R rows of logits, N chosen tokens, V vocabulary, D width.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from agentrl.errors import ConfigError, DataError
from agentrl.training.data.attention import attention_arguments
from agentrl.training.data.packing import Packed
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.mlp_row_skip import LAST_ROWS
from agentrl.training.models.packed_model import PackedModel, load_pretrained

__all__ = ["PolicyModel", "load_policy"]

_CHUNK_ELEMENTS = 2**25
"""Logits that exist at once: 128 MiB in float32."""


class PolicyModel(PackedModel):
    """Trunk, then head and log-softmax over chunks of chosen tokens."""

    @property
    def head(self) -> nn.Module:
        """The output layer, which makes logits of hidden states."""
        head: nn.Module = self.hf.get_output_embeddings()  # type: ignore[operator]
        return head

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Logprobs of the trained tokens of a packed row, at each sample's temperature.

        A row without trained tokens answers for one arbitrary token, so that every rank runs the same collectives
        forward and backward; the caller weighs it with 0.

        Returns:
            ``[max(N, 1)]`` float32 logprobs with gradient, and entropies in nats without.
        """
        if packed.targets.numel():
            rows, temperature = packed.logit_rows, packed.temperature
            logit_of, targets = packed.logit_of, packed.targets
        else:
            rows = logit_of = targets = torch.zeros(
                1, dtype=torch.int64, device=packed.token_ids.device
            )
            temperature = torch.ones(1, device=rows.device)
        chosen = self.hidden(packed, rows)
        size = max(1, _CHUNK_ELEMENTS // int(self.config.get_text_config().vocab_size))
        if rows.numel() <= size:
            return self._logprobs(chosen, temperature, logit_of, targets)
        firsts = torch.arange(0, rows.numel(), size, device=rows.device)
        places = [*torch.searchsorted(logit_of, firsts).tolist(), logit_of.numel()]
        parts = [
            checkpoint(
                self._logprobs,
                chosen[first : first + size],
                temperature[first : first + size],
                logit_of[low:high] - first,
                targets[low:high],
                use_reentrant=False,
            )
            for first, low, high in zip(firsts.tolist(), places, places[1:], strict=False)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _logprobs(
        self, hidden: Tensor, temperature: Tensor, logit_of: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = self.head(hidden).float() / temperature[:, None]
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs[logit_of, targets], entropy[logit_of]


def load_policy(
    path: str | Path, *, attention: str, gradient_checkpointing: bool = False
) -> PolicyModel:
    """Any causal model from a Hugging Face folder; see ``load_pretrained``.

    The trunk and head are compared with the model's own logits, so that a family which does more after its head
    (capping, scaling) is refused instead of trained on other probabilities.

    Args:
        path: the folder.
        attention: ``segments`` or ``flash_attention_2``.
        gradient_checkpointing: recompute each layer in the backward.

    Raises:
        DataError: the folder holds no causal model that can be loaded.
        ConfigError: the family can't be trained packed.
    """
    hf, missing = load_pretrained(
        AutoModelForCausalLM,
        path,
        "ActorSpec.model_path",
        "a causal model",
        attention=attention,
        gradient_checkpointing=gradient_checkpointing,
    )
    if missing:
        raise DataError(
            f"ActorSpec.model_path={str(path)!r} lacks weights of a causal model ({sorted(missing)[0]!r}); a reward model is no "
            "policy to start from"
        )
    model = PolicyModel(hf, attention)
    if attention != "flash_attention_2":  # which has no CPU kernel; the family's answer is the same
        _check_head(model, str(path))
    return model


@torch.no_grad()
def _check_head(model: PolicyModel, path: str) -> None:
    ids = torch.arange(4) % int(model.config.get_text_config().vocab_size)
    arguments = attention_arguments(model.attention, [Span(ROOT, 0, 4)], ids.device)
    own = model.hf(
        input_ids=ids[None], position_ids=torch.arange(4)[None], use_cache=False, **arguments
    ).logits[0]
    rows = torch.tensor([1, 3])
    trunk = model.hf.base_model(  # type: ignore[operator]
        input_ids=ids[None],
        position_ids=torch.arange(4)[None],
        use_cache=False,
        **arguments,
        **{LAST_ROWS: rows},
    ).last_hidden_state[0]
    if not torch.allclose(own[rows], model.head(trunk[rows]), rtol=1e-4, atol=1e-4):
        raise ConfigError(
            f"ActorSpec.model_path={path!r}: {type(model.hf).__name__} changes logits after its output layer (capping or "
            "scaling), which the trainer doesn't do; choose another family"
        )
