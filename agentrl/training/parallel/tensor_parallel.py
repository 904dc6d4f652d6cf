"""Tensor parallelism: the layers of known families divided over ranks (arXiv:1909.08053).

- Query, key, value, gate and up projections are divided by rows of their weight, output and down
  projections by columns, embedding and output layer by the vocabulary. Each is a DTensor.
- Of a mixture of experts attention, embedding and output layer are divided so; ``mixture`` has how
  the ranks share the rest.
- Norms are whole on every rank. Norms of heads are used for a rank's own heads, so that their
  gradients are summed.
- Where key heads are fewer than ranks, key and value projections are whole on every rank, which
  computes the one head that its queries read; their gradients are summed too.

Shapes: T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.func import functional_call
from torch.nn.functional import embedding, linear

from agentrl.engines.torch.model.families import FAMILIES, MIXTURES
from agentrl.errors import ConfigError
from agentrl.training.parallel.collectives import sum_gradient, sum_values
from agentrl.training.parallel.shards import divided_parameter, local


def check_tensor_parallel(config: Any, tp: int, named: str) -> None:
    """Refuses a model that cannot be divided.

    Args:
        config: of its text model.
        tp: ranks that shall hold a layer.
        named: the model's setting and value, for errors.

    Raises:
        ConfigError: the family is unknown here, or a size cannot be divided.
    """
    if tp == 1:
        return
    known = [*FAMILIES, *(name for name, one in MIXTURES.items() if one.is_llama)]
    if config.model_type not in known:
        raise ConfigError(
            f"PlacementConfig.tp_size={tp} divides models of {', '.join(known)}, got "
            f"{config.model_type!r} as the family of {named}; set PlacementConfig.tp_size=1 "
            "(TrainConfig.shard divides the weights of any family), or choose one of those"
        )
    undivided = _undivided(config, tp)
    if undivided is None:
        return
    heads = int(config.num_attention_heads)
    possible = [str(n) for n in range(1, heads + 1) if _undivided(config, n) is None]
    remedy = f"set one of {', '.join(possible)}"
    if undivided.endswith(_VOCABULARY):
        remedy += (
            ", or add unused entries: transformers' resize_token_embeddings(None, "
            f"pad_to_multiple_of={tp}), and save the model again"
        )
    raise ConfigError(
        f"PlacementConfig.tp_size must divide the {undivided} of {named}, got {tp}; {remedy}"
    )


_VOCABULARY = "entries of the vocabulary"


def _undivided(config: Any, tp: int) -> str | None:
    """The first number of a model's parts that ``tp`` does not divide, and what they are."""
    sizes = {
        "attention heads": int(config.num_attention_heads),
        "units of each MLP": int(config.intermediate_size) if _has_mlps(config) else 0,
        _VOCABULARY: int(config.vocab_size),
    }
    for what, size in sizes.items():
        if size % tp:
            return f"{size} {what}"
    kv_heads = int(config.num_key_value_heads)
    if kv_heads % tp and tp % kv_heads:
        return f"{kv_heads} key heads (or be a multiple of them)"
    return None


def _has_mlps(config: Any) -> bool:
    """Whether a layer has an MLP, and no mixture of experts."""
    if config.model_type not in MIXTURES:
        return True
    return bool(getattr(config, "mlp_only_layers", ())) or (
        getattr(config, "decoder_sparse_step", 1) > 1
    )


class DividedLinear(nn.Linear):
    """A linear layer that computes some of its outputs (a weight divided by rows).

    Args:
        whole: the layer, before it is divided.
        parameters: its parameters as they shall be.
    """

    def __init__(self, whole: nn.Linear, parameters: Mapping[str, nn.Parameter]) -> None:
        # Linear's own constructor would allocate a whole weight, and draw random numbers for it.
        nn.Module.__init__(self)
        self.in_features, self.out_features = whole.in_features, whole.out_features
        self.register_parameter("weight", parameters["weight"])
        self.register_parameter("bias", parameters.get("bias"))

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., outputs of this rank]``."""
        return linear(
            hidden, local(self.weight), None if self.bias is None else local(self.bias)
        )


class SummedLinear(DividedLinear):
    """A linear layer that reads some of its inputs (a weight divided by columns); the ranks' parts
    are summed, and the bias, whole on every rank, is added once."""

    def __init__(
        self,
        whole: nn.Linear,
        parameters: Mapping[str, nn.Parameter],
        group: dist.ProcessGroup,
    ) -> None:
        super().__init__(whole, parameters)
        self._group = group

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., D]`` of ``[..., inputs of this rank]``."""
        found = sum_values(linear(hidden, local(self.weight)), self._group)
        return found if self.bias is None else found + self.bias


class OneHeadLinear(DividedLinear):
    """A projection to keys or values whose parameters are whole on every rank; it computes one
    head.

    Args:
        whole: the layer.
        head: the rank's, from 0.
        width: of a head.
        group: the ranks.
    """

    def __init__(
        self, whole: nn.Linear, head: int, width: int, group: dist.ProcessGroup
    ) -> None:
        super().__init__(whole, dict(whole.named_parameters()))
        self._first, self._width, self.group = head * width, width, group

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., width of a head]``."""
        bias = None if self.bias is None else self.own(self.bias)
        return linear(hidden, self.own(self.weight), bias)

    def own(self, parameter: Tensor) -> Tensor:
        """The rows of this rank's head, of a parameter that every rank holds."""
        whole = whole_gradient(parameter, self.group)
        return whole.narrow(0, self._first, self._width)


class HeadNorm(nn.Module):
    """A norm of a rank's own heads, whose weight is that of all ranks.

    Args:
        whole: the family's norm.
        group: the ranks.
    """

    def __init__(self, whole: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        weight = whole.weight
        assert isinstance(weight, nn.Parameter)
        self.weight = weight
        # outside the module's tree, which shall hold the weight once
        self._norm = (deepcopy(whole).to("meta"),)
        self._group = group

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., heads, head width]``, normed."""
        weight = whole_gradient(self.weight, self._group)
        normed: Tensor = functional_call(self._norm[0], {"weight": weight}, (hidden,))
        return normed


class VocabularyEmbedding(nn.Embedding):
    """An embedding that holds a range of the vocabulary.

    Args:
        whole: the layer, before it is divided.
        weight: as it shall be.
        group: the ranks, each with an equal range, in order.
    """

    def __init__(
        self, whole: nn.Embedding, weight: nn.Parameter, group: dist.ProcessGroup
    ) -> None:
        # As in ``DividedLinear``: Embedding's own constructor would make a whole weight.
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = whole.num_embeddings, whole.embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = whole.padding_idx, None, 2.0
        self.scale_grad_by_freq, self.sparse = False, False
        self.weight = weight
        self._group = group
        self._size = whole.num_embeddings // dist.get_world_size(group)
        self._first = self._size * dist.get_rank(group)

    def forward(self, token_ids: Tensor) -> Tensor:
        """``[..., D]`` of ``[...]`` int64 tokens."""
        return self.look_up(token_ids, local(self.weight))

    def look_up(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """``[..., D]`` of ``[...]`` tokens, in a table whose rows are this rank's entries."""
        places = token_ids - self._first
        is_own = (places >= 0) & (places < self._size)
        padding = None if self.padding_idx is None else self.padding_idx - self._first
        if padding is not None and not 0 <= padding < self._size:
            padding = None
        # An index has to exist also for a token of another rank, whose row is set to 0 below.
        found = embedding(places.clamp(0, self._size - 1), table, padding)
        return sum_values(torch.where(is_own[..., None], found, 0.0), self._group)


class VocabularyShard:
    """This rank's range of an output layer that is divided by the vocabulary.

    Args:
        group: the ranks, each with an equal range, in order.
        size: entries of the range.
    """

    def __init__(self, group: dist.ProcessGroup, size: int) -> None:
        self.size = size
        self._group = group
        self._first = size * dist.get_rank(group)

    def enter(self, hidden: Tensor) -> Tensor:
        """Hidden states that every rank holds, for the layer."""
        return sum_gradient(hidden, self._group)

    def logprobs(
        self, logits: Tensor, logit_of: Tensor, targets: Tensor, *, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Logprobs of targets and the entropies of their distributions, equal on every rank.

        Args:
            logits: ``[R, V / ranks]``.
            logit_of: ``[N]`` int64, the row of each target.
            targets: ``[N]`` int64 entries of the vocabulary.
            entropy_gradient: whether the entropy has one.
        """
        # Less the largest logit of all ranks, no exponential overflows. Log-sum-exp is the same for
        # any number that is taken off, so this one needs no gradient.
        most = logits.detach().max(-1).values
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._group)
        sums = sum_values((logits - most[:, None]).exp().sum(-1), self._group)
        # This is log Σ exp, which each rank uses for its own entries below.
        total = most + sums.log()
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            normed = logits - sum_gradient(total, self._group)[:, None]
            entropy = sum_values(-(normed.exp() * normed).sum(-1), self._group)
        places = targets - self._first
        is_own = (places >= 0) & (places < self.size)
        own = logits[logit_of, places.clamp(0, self.size - 1)]
        chosen = sum_values(torch.where(is_own, own, 0.0), self._group)
        return chosen - total[logit_of], entropy[logit_of]


def whole_gradient(parameter: Tensor, group: dist.ProcessGroup) -> Tensor:
    """A parameter that every rank holds, and of which it uses a part or for a part."""
    return sum_gradient(parameter, group)


def divide_model(hf: nn.Module, mesh: DeviceMesh) -> None:
    """Divides a model's layers over ranks, in place; nothing is sent.

    Args:
        hf: whole and equal on every rank, or on ``meta``; ``check_tensor_parallel`` accepts it.
        mesh: of the ranks, one-dimensional.
    """
    divide = _Divider(mesh)
    base: Any = hf.base_model
    model: Any = hf
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear):
        model.set_output_embeddings(DividedLinear(head, divide.rows(head)))
    (weight,) = divide.rows(base.embed_tokens).values()
    model.set_input_embeddings(VocabularyEmbedding(base.embed_tokens, weight, divide.group))
    for block in base.layers:
        divide.attention(block.self_attn)
        # a mixture divides its row over the ranks, and its experts otherwise
        if not hasattr(block.mlp, "experts"):
            divide.mlp(block.mlp)


class _Divider:
    """Divides layers over the ranks of a mesh.

    Args:
        mesh: one-dimensional.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group()
        self._mesh = mesh
        self._size, self._rank = mesh.size(), mesh.get_local_rank()
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    def attention(self, layer: Any) -> None:
        """Divides the heads of an attention layer."""
        heads = layer.config.num_attention_heads
        kv_heads = layer.config.num_key_value_heads
        layer.q_proj = DividedLinear(layer.q_proj, self.rows(layer.q_proj))
        for name in ("k_proj", "v_proj"):
            whole = getattr(layer, name)
            # There may be fewer of them than ranks.
            if kv_heads % self._size:
                head = self._rank * kv_heads // self._size
                made: nn.Module = OneHeadLinear(whole, head, layer.head_dim, self.group)
            else:
                made = DividedLinear(whole, self.rows(whole))
            setattr(layer, name, made)
        layer.o_proj = SummedLinear(layer.o_proj, self.columns(layer.o_proj), self.group)
        for name in ("q_norm", "k_norm"):
            if hasattr(layer, name):
                setattr(layer, name, HeadNorm(getattr(layer, name), self.group))
        # transformers repeats key heads so often. The whole layer's ratio is another one where key
        # heads are fewer than ranks.
        layer.num_key_value_groups = heads // self._size // max(1, kv_heads // self._size)
        layer.register_forward_pre_hook(self._enter, with_kwargs=True)

    def mlp(self, layer: Any) -> None:
        """Divides the units of an MLP."""
        for name in ("gate_proj", "up_proj"):
            whole = getattr(layer, name)
            setattr(layer, name, DividedLinear(whole, self.rows(whole)))
        layer.down_proj = SummedLinear(
            layer.down_proj, self.columns(layer.down_proj), self.group
        )
        layer.register_forward_pre_hook(self._enter, with_kwargs=True)

    def rows(self, whole: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of a layer, divided by their first dimension."""
        return {name: self._part(one, 0) for name, one in whole.named_parameters()}

    def columns(self, whole: nn.Linear) -> dict[str, nn.Parameter]:
        """The parameters of a layer, the weight divided by its second dimension."""
        return {
            name: self._part(one, 1) if name == "weight" else one
            for name, one in whole.named_parameters()
        }

    def _part(self, whole: nn.Parameter, dim: int) -> nn.Parameter:
        """A tied parameter is divided once."""
        if id(whole) not in self._made:
            made = divided_parameter(whole, self._mesh, dim)
            # The whole is kept beside its part: the id of an object that is gone comes again.
            self._made[id(whole)] = (whole, made)
        return self._made[id(whole)][1]

    def _enter(
        self, _layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hidden states that every rank holds enter a layer that is divided."""
        # transformers calls an MLP with its hidden states by place, and attention by keyword.
        if args:
            return (sum_gradient(args[0], self.group), *args[1:]), keywords
        hidden = sum_gradient(keywords["hidden_states"], self.group)
        return args, {**keywords, "hidden_states": hidden}
