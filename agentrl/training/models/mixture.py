"""Mixture: the experts of a layer, and which of them compute a token.

- The router's product and its softmax are at least float32 whatever the forward's dtype, of the
  router's weight in that dtype, which is what engines serve.
- Experts have no capacity: every token is computed by all that it chose. What a token gets does not
  depend on the tokens beside it, but for the rounding of products of other sizes.
- Parameters keep the names and the form that transformers gives them: experts are one stack.
- The experts of a token may be given. Its gates are then made of its own logits.
- Experts may be divided over ranks, which send each other the rows of their tokens. Ranks that hold
  all tokens together (tensor parallelism) take a slice of them each, as if they were others.

Shapes: T tokens, L mixtures of the model, E experts, K of a token, S = T · K pairs of a token and
an expert, D width, R ranks that share the experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from agentrl.engines.torch.model.families import MIXTURES, MixtureFamily
from agentrl.errors import ConfigError
from agentrl.training.parallel.collectives import (
    exchange_rows,
    gather_parts,
    own_rows,
    sum_gradient,
)
from agentrl.training.parallel.process_group import ExpertMesh
from agentrl.training.parallel.shards import divided_parameter, local


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """How a mixture routed a row, without gradient.

    Args:
        experts: ``[T, K]`` int64, those that computed each token.
        entropy: ``[T]`` of the router's distribution over all experts, in nats.
        first: the place in the row of the first token here: tensor-parallel ranks have a slice of
            it each.
    """

    experts: Tensor
    entropy: Tensor
    first: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Balance:
    """A loss of the router's probabilities, linear in them (``ExpertLoads``).

    Args:
        factors: ``[E]`` float64, of each expert.
        copies: ``[T]`` how often each token counts.
    """

    factors: Tensor
    copies: Tensor

    def loss(self, logits: Tensor, first: int) -> Tensor:
        """That of ``[T, E]`` logits of the tokens from ``first`` on."""
        copies = self.copies[first : first + logits.shape[0]].to(logits.dtype)
        return (logits.softmax(-1) @ self.factors.to(logits.dtype)) @ copies


@dataclass(slots=True, eq=False)
class Routing:
    """What the mixtures of a model are told before a forward pass, and tell of it.

    Nothing here changes from a forward pass to its backward pass, so that a layer that is computed
    again routes as it did.

    Args:
        num_experts: of each mixture.
        top_k: experts of a token.

    Attributes:
        num_layers: mixtures, in the order of layers; a layer without experts has no number.
        last: what each of them did in the last forward pass, by its number.
        balance: what a backward pass adds to the loss, of the forward pass before it; None adds
            nothing.
    """

    num_experts: int
    top_k: int
    num_layers: int = 0
    last: dict[int, Routed] = field(default_factory=dict)
    balance: Balance | None = None
    _chosen: Tensor | None = None

    def begin(self, chosen: Tensor | None = None) -> None:
        """Prepares a forward pass.

        Args:
            chosen: ``[T, L, K]`` integers, the experts of each token; a token whose first one is
                below 0 routes itself in that layer. None lets all of them.

        Raises:
            ValueError: the shape has other mixtures or another K.
        """
        if chosen is not None and chosen.shape[1:] != (self.num_layers, self.top_k):
            raise ValueError(
                f"chosen experts must have shape [tokens, {self.num_layers} mixtures, "
                f"{self.top_k} experts a token], got {list(chosen.shape)}"
            )
        self._chosen = chosen
        self.last.clear()

    def chosen_in(self, layer: int, first: int, stop: int) -> Tensor | None:
        """``[stop - first, K]`` int64 given experts of some tokens in a mixture."""
        return None if self._chosen is None else self._chosen[first:stop, layer].long()


class StackedExperts(nn.Module):
    """The experts of a layer, each parameter a stack of theirs.

    Args:
        whole: transformers' module, whose parameters it takes.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        for name, parameter in list(whole.named_parameters(recurse=False)):
            self.register_parameter(name, parameter)
            # The activation is the module's method, which would keep what is divided here.
            delattr(whole, name)
        family: Any = whole
        self._apply_gate = family._apply_gate
        self.is_transposed = bool(family.is_transposed)
        # adapters of some of them, by the parameter's name
        self.lora = nn.ModuleDict()

    def divide(self, mesh: DeviceMesh) -> None:
        """Keeps this rank's experts."""
        for name, parameter in list(self.named_parameters(recurse=False)):
            self._parameters[name] = divided_parameter(parameter, mesh, 0)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """``[S, D]`` of ``[S, D]`` rows in the order of their experts.

        Args:
            rows: those of each expert of this rank behind those of the one before.
            ends: ``[E / R]`` int32, where the rows of each end.
        """
        inner = self._product(rows, "gate_up_proj", ends)
        return self._product(self._apply_gate(inner), "down_proj", ends)

    def _product(self, rows: Tensor, name: str, ends: Tensor) -> Tensor:
        stack = local(getattr(self, name))
        matrices = stack if self.is_transposed else stack.transpose(-2, -1)
        found = grouped_product(rows, matrices, ends)
        if name in self.lora:
            found = self.lora[name](rows, ends, found)
        bias: Tensor | None = getattr(self, f"{name}_bias", None)
        if bias is None:
            return found
        return found + local(bias).repeat_interleave(
            counts_of(ends), 0, output_size=rows.shape[0]
        )


class Mixture(nn.Module):
    """A router and its experts, in the place of a family's own.

    Args:
        whole: transformers' module, whose router and experts it takes under their names.
        family: how it routes.
        routing: of the model.
    """

    def __init__(self, whole: nn.Module, family: MixtureFamily, routing: Routing) -> None:
        super().__init__()
        self._family = family
        self._routing = routing
        self._ranks: dist.ProcessGroup | None = None
        self._tensor: dist.ProcessGroup | None = None
        self._layer = routing.num_layers
        routing.num_layers += 1
        router = whole.get_submodule(family.router)
        # All families but one scale the gates to a sum of 1 always.
        self._norms = bool(getattr(router, "norm_topk_prob", True))
        self.add_module(family.router, router)
        self.experts = StackedExperts(whole.get_submodule("experts"))

    @property
    def num_idle(self) -> int:
        """Parameters of the experts that a token does not choose; before they are divided."""
        whole = sum(parameter.numel() for parameter in self.experts.parameters())
        return whole - whole // self._routing.num_experts * self._routing.top_k

    def divide(self, mesh: ExpertMesh, tensor: DeviceMesh | None) -> None:
        """Divides experts and rows over ranks.

        Args:
            mesh: the ranks that share the experts.
            tensor: those that hold all tokens together; None for one.
        """
        self._tensor = None if tensor is None else tensor.get_group()
        if mesh.experts is not None:
            self._ranks = mesh.experts.get_group()
            self.experts.divide(mesh.experts)

    def forward(self, hidden: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """``[1, T, D]`` of ``[1, T, D]``, and in some families the gates."""
        rows, first = hidden.flatten(0, -2), 0
        if self._tensor is not None:
            rows, counts = own_rows(rows, self._tensor)
            first = sum(counts[: self._tensor.rank()])
        experts, gates = self.route(rows, first)
        found = self._mix(rows, experts, gates)
        if self._tensor is not None:
            found = gather_parts(found, counts, self._tensor)
        found = found.view_as(hidden)
        return (found, gates) if self._family.answers_gates else found

    def route(self, rows: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """The experts of ``[T, D]`` hidden states, ``[T, K]`` int64, and their gates, at least
        float32.

        Args:
            rows: a slice of the row's.
            first: where it begins.
        """
        logits = self._logits(rows)
        experts = logits.detach().topk(self._routing.top_k, -1).indices
        given = self._routing.chosen_in(self._layer, first, first + rows.shape[0])
        if given is not None:
            experts = torch.where(given[:, :1] < 0, experts, given)
        # What is left of all probabilities, scaled to a sum of 1, is a softmax of those logits.
        if self._norms:
            gates = logits.gather(1, experts).softmax(-1)
        else:
            gates = logits.softmax(-1).gather(1, experts)
        if self._routing.balance is not None:
            gates = _with_loss(gates, self._routing.balance.loss(logits, first))
        entropy = torch.special.entr(logits.detach().softmax(-1)).sum(-1)
        self._routing.last[self._layer] = Routed(experts, entropy, first)
        return experts, gates

    def _logits(self, rows: Tensor) -> Tensor:
        router = self.get_submodule(self._family.router)
        parameters: dict[str, Tensor] = dict(router.named_parameters())
        if self._tensor is not None:
            parameters = {
                name: sum_gradient(one, self._tensor) for name, one in parameters.items()
            }
        wide = torch.promote_types(rows.dtype, torch.float32)
        return functional.linear(
            rows.to(wide), **{name: one.to(wide) for name, one in parameters.items()}
        )

    def _mix(self, rows: Tensor, experts: Tensor, gates: Tensor) -> Tensor:
        """``[T, D]``: what a token's experts made of it, weighted."""
        order, inverse, ends = in_order(experts.flatten(), self._routing.num_experts)
        pairs = spread(rows, order, inverse, experts.shape[1])
        made = (
            self.experts(pairs, ends)
            if self._ranks is None
            else self._on_ranks(pairs, ends)
        )
        pairs = spread(made, inverse, order, 1).view(*experts.shape, rows.shape[1])
        # Summed in the gates' dtype, in the order of a token's own experts.
        total = pairs[:, 0] * gates[:, :1]
        for place in range(1, pairs.shape[1]):
            total = total + pairs[:, place] * gates[:, place, None]
        return total.to(rows.dtype)

    def _on_ranks(self, pairs: Tensor, ends: Tensor) -> Tensor:
        """``[S, D]`` of pairs in the order of experts, which the ranks compute for each other."""
        ranks = self._ranks
        assert ranks is not None, "_mix has looked"
        # ``[R, E / R]``: of the pairs of this rank, and of those that come here
        counts = counts_of(ends).view(ranks.size(), -1)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=ranks)
        sent, received = torch.stack([counts.sum(1), theirs.sum(1)]).tolist()
        come = exchange_rows(pairs, sent, received, ranks)
        # each rank's are in the order of experts
        numbers = torch.arange(theirs.shape[1], device=theirs.device).repeat(ranks.size())
        numbers = numbers.repeat_interleave(theirs.flatten(), output_size=come.shape[0])
        order, inverse, own_ends = in_order(numbers, theirs.shape[1])
        made = self.experts(spread(come, order, inverse, 1), own_ends)
        return exchange_rows(spread(made, inverse, order, 1), received, sent, ranks)


def counts_of(ends: Tensor) -> Tensor:
    """``[E]`` how many pairs each expert has."""
    return ends.diff(prepend=ends.new_zeros(1))


def in_order(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Brings pairs into the order of their ``[S]`` experts: ``[S]`` the pair at each place, ``[S]``
    the place of each pair, and ``[E]`` int32 where the pairs of each expert end."""
    ordered, order = torch.sort(experts, stable=True)
    numbers = torch.arange(num_experts, device=experts.device)
    ends = torch.searchsorted(ordered, numbers, right=True, out_int32=True)
    return order, torch.argsort(order), ends


def spread(rows: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
    """``[S, D]`` rows of pairs: of ``copies`` pairs of each row, in another order.

    Args:
        rows: ``[S / copies, D]``.
        order: ``[S]`` int64, the pair at each place.
        inverse: ``[S]`` int64, the place of each pair.
        copies: pairs of each row, which lie behind each other before they are reordered.
    """
    found: Tensor = _Spread.apply(rows, order, inverse, copies)  # type: ignore[no-untyped-call]
    return found


class _Spread(torch.autograd.Function):
    # Autograd does not know that an order has each place once: it would add the gradient up row by
    # row, on a GPU in an order that is not told, and in the rows' dtype.
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, copies: int
    ) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return rows.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        pairs = gradient.index_select(0, inverse)
        if ctx.copies > 1:
            pairs = pairs.view(
                pairs.shape[0] // ctx.copies, ctx.copies, pairs.shape[1]
            ).sum(1)
        return pairs, None, None, None


def _with_loss(tensor: Tensor, loss: Tensor) -> Tensor:
    """``tensor``, whose backward pass adds ``loss`` to what is minimised: a layer that is computed
    again in its backward pass has no other way out."""
    found: Tensor = _WithLoss.apply(tensor, loss)  # type: ignore[no-untyped-call]
    return found


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.detach()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(ctx.like)


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """The product of each expert's rows with its matrix.

    Args:
        rows: ``[S, D]``, those of each expert behind those of the one before.
        matrices: ``[E, D, outputs]``.
        ends: ``[E]`` int32, where the rows of each expert end.
    """
    if _has_grouped(rows, matrices):
        found: Tensor = functional.grouped_mm(rows, matrices, offs=ends)
        return found
    # Unbound at once: the gradient of one matrix that is picked has the size of the whole stack.
    # Experts without rows take part, so that their gradients are zeros and not none.
    parts = [
        rows[first:stop] @ matrix
        for (first, stop), matrix in zip(
            pairwise([0, *ends.tolist()]), matrices.unbind(), strict=True
        )
    ]
    return torch.cat(parts)


_ALIGNED_BYTES = 16
"""Of the rows that a GPU's kernel reads."""


def _has_grouped(rows: Tensor, matrices: Tensor) -> bool:
    """Whether torch multiplies so in one kernel here."""
    if (
        not rows.is_cuda
        or rows.dtype != torch.bfloat16
        or not hasattr(functional, "grouped_mm")
    ):
        return False
    sizes = {rows.shape[-1], matrices.shape[-1]}
    is_aligned = all(size * rows.element_size() % _ALIGNED_BYTES == 0 for size in sizes)
    return is_aligned and torch.cuda.get_device_capability(rows.device) >= (8, 0)


def check_expert_parallel(config: Any, ep: int, named: str) -> None:
    """Refuses a model whose experts cannot be divided.

    Args:
        config: of its text model.
        ep: ranks that shall share the experts of a layer.
        named: the model's setting and value, for errors.

    Raises:
        ConfigError: the family has no experts, is not known here, or has too few.
    """
    if ep == 1:
        return
    if config.model_type not in MIXTURES:
        raise ConfigError(
            f"TrainConfig.ep_size={ep} divides the experts of {', '.join(MIXTURES)}, got "
            f"{config.model_type!r} as the family of {named}; set TrainConfig.ep_size=1"
        )
    experts = _num_experts(config)
    if experts % ep:
        possible = [str(n) for n in range(1, experts + 1) if experts % n == 0]
        raise ConfigError(
            f"TrainConfig.ep_size must divide the {experts} experts of each layer of {named}, got "
            f"{ep}; set one of {', '.join(possible)}"
        )


def use_mixtures(hf: nn.Module) -> Routing | None:
    """Puts ``Mixture`` in the place of a model's mixtures of experts; parameters keep their names.

    Args:
        hf: of transformers, not yet sharded; it may be on ``meta``.

    Returns:
        Their routing; None for a dense model, or a family that is trained as transformers computes
        it.
    """
    model: Any = hf
    config = model.config.get_text_config()
    family = MIXTURES.get(config.model_type)
    if family is None:
        return None
    routing = Routing(_num_experts(config), int(config.num_experts_per_tok))
    for parent in list(hf.modules()):
        for name, child in list(parent.named_children()):
            if hasattr(child, family.router) and hasattr(child, "experts"):
                setattr(parent, name, Mixture(child, family, routing))
    return routing if routing.num_layers else None


def _num_experts(config: Any) -> int:
    """Of each mixture."""
    return int(getattr(config, "num_experts", None) or config.num_local_experts)
