"""Policy model: a causal language model that returns logprobs of chosen tokens, never whole logits.

Shapes: T packed tokens, R rows of logits, N chosen tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from agentrl.engines.torch.model import fixed_shapes
from agentrl.errors import ConfigError, DataError
from agentrl.training.data.attention import FIXED
from agentrl.training.data.packing import Packed
from agentrl.training.models.chunked_head import ChunkedHead
from agentrl.training.models.packed_model import (
    CPU,
    I64,
    ModelSpec,
    PackedModel,
    at_least_float32,
    attention_of,
    open_pretrained,
)
from agentrl.training.models.trunk import COMPILER
from agentrl.training.models.twin import check_twin, small_twin
from agentrl.training.parallel.collectives import gather_parts
from agentrl.training.parallel.process_group import ExpertMesh, RankMesh
from agentrl.training.parallel.tensor_parallel import VocabularyShard
from agentrl.training.vision.vision_tower import VisionTower, check_gradients

_CHUNK_ELEMENTS = 2**25
"""Logits that exist at once: 128 MiB in float32."""

_GPU_CHUNK_ELEMENTS = 2**27
"""The same on a GPU, whose products want more rows: each chunk reads the head and its gradient."""

_ALIGNED = 256
"""Rows of a chunk are a multiple of it: a GPU multiplies matrices of odd sizes at a fraction of its
speed."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens whose logprobs are asked for; as in ``Packed``, and at least one.

    The host's copy tells of which row each target is, which decides the shapes of chunks.
    """

    temperature: Tensor
    logit_of: Tensor
    targets: Tensor
    host_logit_of: I64


class TokenScorer(nn.Module):
    """A model's head and all that calls it in a forward pass, which FSDP gathers the head for once.

    Args:
        head: the model's.
        score: returns logprobs and entropies of tokens.
    """

    def __init__(
        self, head: nn.Module, score: Callable[[Tensor, Tokens], tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.head = head
        self._score = score

    def forward(self, chosen: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """What ``score`` returns."""
        return self._score(chosen, tokens)


class PolicyModel(PackedModel):
    """A trunk, then head and log-softmax over chunks of chosen tokens.

    Attributes:
        vocabulary: this rank's range of the vocabulary, under tensor parallelism.
    """

    entropy_gradient = False
    """Whether a loss reads the gradient of the entropy."""

    _runs_on_gpu = False
    _pick: Callable[..., tuple[Tensor, Tensor]] | None = None
    """The compiled ``_pick``; None computes uncompiled."""

    def __init__(self, hf: nn.Module, attention: str, device: torch.device) -> None:
        super().__init__(hf, attention, device)
        self.vocabulary: VocabularyShard | None = None
        self.scorer = TokenScorer(self.head, self._score)
        self._runs_on_gpu = device.type == "cuda"

    @property
    def head(self) -> nn.Module:
        """The output layer, which converts hidden states to logits."""
        head: nn.Module = self.hf.get_output_embeddings()  # type: ignore[operator]
        return head

    def output_modules(self) -> list[nn.Module]:
        """The head, with all that it is called for, unless the embedding shares its weight."""
        return [self.scorer] if self.input_modules() else []

    def compile_scores(self) -> None:
        """See ``PackedModel.compile_scores``."""
        self._pick = torch.compile(_pick, dynamic=True, backend=COMPILER)

    def divide(self, mesh: RankMesh, experts: ExpertMesh | None = None) -> None:
        """See ``PackedModel.divide``."""
        super().divide(mesh, experts)
        if mesh.tensor is not None:
            size = int(self.config.get_text_config().vocab_size) // mesh.tensor.size()
            self.vocabulary = VocabularyShard(mesh.tensor.get_group(), size)
            # The scorer that was made before holds the output layer that is now divided.
            self.scorer = TokenScorer(self.head, self._score)

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Logprobs of the wanted tokens of a packed row, at each sample's temperature.

        A row without trained tokens returns one arbitrary token's; the caller weighs it with 0.

        Returns:
            ``[max(N, 1)]`` logprobs, at least float32, with gradient, and entropies in nats, which
            have one where ``entropy_gradient`` asks for it.
        """
        tokens = Tokens(
            packed.temperature, packed.logit_of, packed.targets, packed.host_logit_of
        )
        chosen = self.hidden(
            packed.token_ids,
            packed.positions,
            packed.spans,
            packed.logit_rows,
            packed.before,
            packed.experts,
            packed.media,
        )
        logprobs, entropy = self.scorer(chosen, tokens)
        if not packed.counts or not packed.source.size:
            return logprobs, entropy
        assert self.sequence is not None, "slices are of a sequence group"
        both = torch.stack([logprobs, entropy], 1)
        found = gather_parts(both, packed.counts, self.sequence)
        entropy = found[:, 1] if self.entropy_gradient else found[:, 1].detach()
        # FSDP hooks what it returns, and wants no views.
        return found[:, 0].clone(), entropy.clone()

    def _score(self, chosen: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Logprobs of tokens, and entropies, of ``[R, D]`` hidden states before them."""
        temperature, logit_of, targets = tokens.temperature, tokens.logit_of, tokens.targets
        if self.vocabulary is not None:
            chosen = self.vocabulary.enter(chosen)
        elements = _GPU_CHUNK_ELEMENTS if self._runs_on_gpu else _CHUNK_ELEMENTS
        size = max(1, elements // self._logits_a_row())
        size -= size % _ALIGNED if size > _ALIGNED else 0
        chunks = chosen.shape[0] > size
        head = self._chunked_head() if chunks or self.head_dtype else self.head
        if not chunks:
            return self._logprobs(head, chosen, temperature, logit_of, targets)
        firsts = range(0, chosen.shape[0], size)
        places = [*np.searchsorted(tokens.host_logit_of, firsts).tolist(), logit_of.numel()]
        # The logits of a chunk are computed again in its backward pass. Autograd would keep those
        # of all chunks otherwise, V numbers a row.
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
        return torch.cat([part[0] for part in parts]), torch.cat(
            [part[1] for part in parts]
        )

    def _logprobs(
        self,
        head: Callable[[Tensor], Tensor],
        hidden: Tensor,
        temperature: Tensor,
        logit_of: Tensor,
        targets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        if self.vocabulary is not None:
            logits = at_least_float32(head(hidden)) / temperature[:, None]
            return self.vocabulary.logprobs(
                logits, logit_of, targets, entropy_gradient=self.entropy_gradient
            )
        pick = self._pick or _pick
        return pick(head(hidden), temperature, logit_of, targets, self.entropy_gradient)

    def _logits_a_row(self) -> int:
        if self.vocabulary is not None:
            return self.vocabulary.size
        return int(self.config.get_text_config().vocab_size)

    def _chunked_head(self) -> Callable[[Tensor], Tensor]:
        """The output layer for several chunks, or in a dtype of its own."""
        head = self.head
        if isinstance(head, nn.Linear):
            product = fixed_shapes.linear if self.attention == FIXED else linear
            return ChunkedHead(head, self.head_dtype, product)
        parameters = list(head.parameters())
        if all(parameter.dtype.itemsize >= 4 for parameter in parameters):
            # Autograd's own sum over chunks is exact enough.
            return head
        raise ConfigError(
            f"ActorSpec.dtype must be 'float32' for {type(self.hf).__name__}, whose output layer "
            f"is a {type(head).__name__} and no linear one, got "
            f"'{str(parameters[0].dtype).removeprefix('torch.')}'; set it, or choose another family"
        )


def _pick(
    logits: Tensor,
    temperature: Tensor,
    logit_of: Tensor,
    targets: Tensor,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies of chosen tokens, of ``[R, V]`` logits; a compiled one reads the
    logits a few times and keeps nothing else of their size."""
    logits = at_least_float32(logits) / temperature[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    # It is as large as what follows.
    del logits
    if entropy_gradient and torch.is_grad_enabled():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    else:
        values = logprobs.detach()
        entropy = -values.exp().mul_(values).sum(-1)
    return logprobs[logit_of, targets], entropy[logit_of]


def open_policy(
    spec: ModelSpec, device: torch.device = CPU, *, exact: bool = False
) -> PolicyModel:
    """Builds the causal model of a Hugging Face folder; ``PackedModel.fill`` reads its weights. See
    ``open_pretrained``.

    Trunk and head are compared with the family's own forward on a small twin. A family with capping
    or scaling after its head is refused, because it would be trained on other probabilities, and
    one whose samples in a packed row are not what they are alone.

    Args:
        spec: the folder, and how its model runs.
        device: the device that the model will run on.
        exact: whether it computes in fixed shapes, as ``TorchEngine`` does.

    Raises:
        DataError: the folder holds no loadable causal model.
        ConfigError: the family cannot be trained packed.
    """
    named = f"{spec.setting}={spec.model_path!r}"
    hf, weights, missing = open_pretrained(
        AutoModelForCausalLM, spec, "a causal model", device, exact=exact
    )
    # One whose embeddings are tied lacks no weight of a causal model.
    config: Any = hf.config
    others = [one for one in config.architectures or () if one.endswith("Classification")]
    if missing or others:
        what = f"is a {others[0]}" if others else f"lacks weights ({sorted(missing)[0]!r})"
        raise DataError(
            f"{named} must hold a causal model, and {what}; a reward model is no policy to start "
            "from"
        )
    model = PolicyModel(hf, attention_of(hf), device)
    model.weights = weights
    if model.trunk is not model.hf.base_model:
        folder = Path(spec.model_path)
        model.tower = VisionTower(model.hf.base_model, folder, spec.run_folder, spec.vision)
        if model.tower.is_trained:
            check_gradients(small_twin(AutoModelForImageTextToText, hf.config), named)
    auto = AutoModelForCausalLM if model.tower is None else AutoModelForImageTextToText
    check_twin(
        model,
        auto,
        named,
        "changes logits after its output layer (capping or scaling), which the trainer doesn't do",
    )
    return model
