"""Mixture: the experts of a layer, and which of them compute a token.

- The router's product and its softmax are at least float32 whatever the forward's dtype, of the
  router's weight in that dtype, which is what engines serve.
- Experts have no capacity: every token is computed by all that it chose. What a token gets does not
  depend on the tokens beside it, but for the rounding of products of other sizes.
- Parameters keep the names and the form that transformers gives them: experts are one stack.
- The experts of a token may be given. Its gates are then made of its own logits.

Shapes: T tokens, L mixtures of the model, E experts, K of a token, S = T · K pairs of a token and
an expert, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.engines.torch.model.families import MIXTURES, MixtureFamily


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """How a mixture routed a row, without gradient.

    Args:
        experts: ``[T, K]`` int64, those that computed each token.
        entropy: ``[T]`` of the router's distribution over all experts, in nats.
    """

    experts: Tensor
    entropy: Tensor


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
    """

    num_experts: int
    top_k: int
    num_layers: int = 0
    last: dict[int, Routed] = field(default_factory=dict)
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

    def chosen_in(self, layer: int) -> Tensor | None:
        """``[T, K]`` int64 given experts of a mixture."""
        return None if self._chosen is None else self._chosen[:, layer].long()


class StackedExperts(nn.Module):
    """The experts of a layer, each parameter a stack of theirs.

    Args:
        whole: transformers' module, whose parameters it takes.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        for name, parameter in whole.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        shell: Any = copy(whole)
        shell._parameters = {}
        # The family's activation is a method. The tuple keeps its module out of the tree.
        self._family = (shell,)

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """``[S, D]`` of ``[S, D]`` rows in the order of their experts.

        Args:
            rows: those of each expert behind those of the one before.
            ends: ``[E]`` int32, where the rows of each expert end.
        """
        (family,) = self._family
        parameters = self._parameters
        inner = self._product(rows, "gate_up_proj", ends, parameters)
        return self._product(family._apply_gate(inner), "down_proj", ends, parameters)

    def _product(
        self, rows: Tensor, name: str, ends: Tensor, parameters: dict[str, nn.Parameter | None]
    ) -> Tensor:
        (family,) = self._family
        stack, bias = parameters[name], parameters.get(f"{name}_bias")
        assert stack is not None, "a family's experts are two stacks"
        matrices = stack if family.is_transposed else stack.transpose(-2, -1)
        found = grouped_product(rows, matrices, ends)
        if bias is None:
            return found
        counts = ends.diff(prepend=ends.new_zeros(1))
        return found + bias.repeat_interleave(counts, 0, output_size=rows.shape[0])


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
        self._layer = routing.num_layers
        routing.num_layers += 1
        router = whole.get_submodule(family.router)
        # of the families that choose after a softmax, all but one scale what they chose to a sum
        # of 1 always
        self._norms = bool(getattr(router, "norm_topk_prob", True))
        self.add_module(family.router, router)
        self.experts = StackedExperts(whole.get_submodule("experts"))

    def forward(self, hidden: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """``[1, T, D]`` of ``[1, T, D]``, and in some families the gates."""
        rows = hidden.flatten(0, -2)
        experts, gates = self.route(rows)
        found = self._mix(rows, experts, gates).view_as(hidden)
        return (found, gates) if self._family.answers_gates else found

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of ``[T, D]`` hidden states, ``[T, K]`` int64, and their gates, at least
        float32."""
        logits = self._logits(rows)
        softmax_all = self._family.softmax == "all"
        scores = logits.softmax(-1) if softmax_all else logits
        experts = scores.detach().topk(self._routing.top_k, -1).indices
        given = self._routing.chosen_in(self._layer)
        if given is not None:
            experts = torch.where(given[:, :1] < 0, experts, given)
        gates = scores.gather(1, experts)
        if not softmax_all:
            gates = gates.softmax(-1)
        elif self._norms:
            gates = gates / gates.sum(-1, keepdim=True)
        entropy = torch.special.entr(logits.detach().softmax(-1)).sum(-1)
        self._routing.last[self._layer] = Routed(experts, entropy)
        return experts, gates

    def _logits(self, rows: Tensor) -> Tensor:
        router = self.get_submodule(self._family.router)
        weight, bias = router._parameters["weight"], router._parameters.get("bias")
        assert weight is not None, "a router is a matrix"
        wide = torch.promote_types(rows.dtype, torch.float32)
        return functional.linear(
            rows.to(wide), weight.to(wide), None if bias is None else bias.to(wide)
        )

    def _mix(self, rows: Tensor, experts: Tensor, gates: Tensor) -> Tensor:
        """``[T, D]``: what a token's experts made of it, weighted."""
        in_order, order = torch.sort(experts.flatten(), stable=True)
        inverse = torch.argsort(order)
        ends = ends_of(in_order, self._routing.num_experts)
        made = self.experts(spread(rows, order, inverse, experts.shape[1]), ends)
        pairs = spread(made, inverse, order, 1).view(*experts.shape, -1)
        # Summed in the gates' dtype, in the order of a token's own experts.
        total = pairs[:, 0] * gates[:, :1]
        for place in range(1, pairs.shape[1]):
            total = total + pairs[:, place] * gates[:, place, None]
        return total.to(rows.dtype)


def ends_of(in_order: Tensor, num_experts: int) -> Tensor:
    """``[E]`` int32: where the pairs of each expert end among sorted ones."""
    numbers = torch.arange(num_experts, device=in_order.device)
    return torch.searchsorted(in_order, numbers, right=True, out_int32=True)


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
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return rows.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        pairs = gradient.index_select(0, inverse)
        if ctx.copies > 1:
            pairs = pairs.view(-1, ctx.copies, pairs.shape[-1]).sum(1)
        return pairs, None, None, None


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
    if not rows.is_cuda or rows.dtype != torch.bfloat16 or not hasattr(functional, "grouped_mm"):
        return False
    sizes = {rows.shape[-1], matrices.shape[-1]}
    is_aligned = all(size * rows.element_size() % _ALIGNED_BYTES == 0 for size in sizes)
    return is_aligned and torch.cuda.get_device_capability(rows.device) >= (8, 0)


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
    routing: Routing | None = None
    for parent, name, whole in list(_mixtures(hf, family)):
        router: Any = whole.get_submodule(family.router)
        if routing is None:
            routing = Routing(int(router.num_experts), int(router.top_k))
        setattr(parent, name, Mixture(whole, family, routing))
    return routing


def _mixtures(hf: nn.Module, family: MixtureFamily) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Each mixture by its parent and name, in the order of layers."""
    for parent in hf.modules():
        for name, child in parent.named_children():
            if hasattr(child, family.router) and hasattr(child, "experts"):
                yield parent, name, child
