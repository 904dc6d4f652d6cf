"""Policy model: a causal language model that returns logprobs of chosen tokens, never whole logits.

Shapes: T packed tokens, R rows of logits, N chosen tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from agentrl.errors import ConfigError, DataError
from agentrl.training.data.packing import Packed
from agentrl.training.models.chunked_head import ChunkedHead
from agentrl.training.models.packed_model import (
    CPU,
    FIRST_ROW,
    ModelSpec,
    PackedModel,
    at_least_float32,
    load_pretrained,
)

_CHUNK_ELEMENTS = 2**25
"""Logits that exist at once: 128 MiB in float32."""


class PolicyModel(PackedModel):
    """A trunk, then head and log-softmax over chunks of chosen tokens."""

    entropy_gradient = False
    """Whether a loss reads the gradient of the entropy."""

    @property
    def head(self) -> nn.Module:
        """The output layer, which converts hidden states to logits."""
        head: nn.Module = self.hf.get_output_embeddings()  # type: ignore[operator]
        return head

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Logprobs of the wanted tokens of a packed row, at each sample's temperature.

        A row without trained tokens returns one arbitrary token's, so that every rank runs the same
        collectives forward and backward; the caller weighs it with 0.

        Returns:
            ``[max(N, 1)]`` logprobs, at least float32, with gradient, and entropies in nats, which
            have one where ``entropy_gradient`` asks for it.
        """
        if packed.targets.numel():
            rows, host_rows = packed.logit_rows, packed.before
            temperature = packed.temperature
            logit_of = packed.logit_of
            targets = packed.targets
        else:
            rows = logit_of = targets = torch.zeros(
                1, dtype=torch.int64, device=packed.token_ids.device
            )
            temperature = torch.ones(1, device=rows.device)
            host_rows = FIRST_ROW
        chosen = self.hidden(packed.token_ids, packed.positions, packed.spans, rows, host_rows)
        size = max(1, _CHUNK_ELEMENTS // int(self.config.get_text_config().vocab_size))
        if rows.numel() <= size:
            return self._logprobs(self.head, chosen, temperature, logit_of, targets)
        head = self._chunked_head()
        firsts = range(0, rows.numel(), size)
        # which tokens a chunk foretells decides shapes, so that it is asked of the host
        places = [*np.searchsorted(packed.host_logit_of, firsts).tolist(), logit_of.numel()]
        parts = [
            checkpoint(
                self._logprobs,
                head,
                hidden,
                temperature[first : first + size],
                logit_of[low:high] - first,
                targets[low:high],
                use_reentrant=False,
            )
            for hidden, first, low, high in zip(
                torch.split(chosen, size), firsts, places, places[1:], strict=False
            )
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _logprobs(
        self,
        head: Callable[[Tensor], Tensor],
        hidden: Tensor,
        temperature: Tensor,
        logit_of: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        logits = at_least_float32(head(hidden)) / temperature[:, None]
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.set_grad_enabled(self.entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs[logit_of, targets], entropy[logit_of]

    def _chunked_head(self) -> Callable[[Tensor], Tensor]:
        """The output layer for several chunks; in float32 autograd's own sum over them is exact
        enough.
        """
        head = self.head
        parameters = list(head.parameters())
        if all(parameter.dtype.itemsize >= 4 for parameter in parameters):
            return head
        if not isinstance(head, nn.Linear):
            raise ConfigError(
                f"ActorSpec.dtype must be 'float32' for {type(self.hf).__name__}, whose output "
                f"layer is a {type(head).__name__} and no linear one, got "
                f"'{str(parameters[0].dtype).removeprefix('torch.')}'; set it, or choose another "
                "family"
            )
        return ChunkedHead(head)


def load_policy(spec: ModelSpec, device: torch.device = CPU) -> PolicyModel:
    """Loads a causal model from a Hugging Face folder; see ``load_pretrained``.

    Trunk and head are compared with the model's own logits. A family with capping or scaling after
    its head is refused, because it would be trained on other probabilities.

    Args:
        spec: the folder, and how its model runs.
        device: the device that the model will run on.

    Raises:
        DataError: the folder holds no loadable causal model.
        ConfigError: the family cannot be trained packed.
    """
    hf, missing = load_pretrained(AutoModelForCausalLM, spec, "a causal model", device)
    if missing:
        raise DataError(
            f"{spec.setting}={spec.model_path!r} lacks weights of a causal model "
            f"({sorted(missing)[0]!r}); a reward model is no policy to start from"
        )
    model = PolicyModel(hf, spec.attention, device)
    ids = torch.arange(4) % int(model.config.get_text_config().vocab_size)
    rows = torch.tensor([1, 3])
    if model.check(ids, rows, lambda logits: logits[0, rows]):
        return model
    raise ConfigError(
        f"{spec.setting}={spec.model_path!r}: {type(model.hf).__name__} changes logits after its "
        "output layer (capping or scaling), which the trainer doesn't do; choose another family"
    )
