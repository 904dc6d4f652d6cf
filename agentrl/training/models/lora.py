"""LoRA: adapters of low rank beside the frozen layers of a model (arXiv:2106.09685).

- A layer keeps its class, its parameters and their names; a hook adds what its adapter computes.
- Adapters are made after tensor parallelism has divided the layers, each divided as its own.
- Factors are kept in at least float32 and cast for the forward pass, as all parameters are.
- Experts' factors make a product as large as the stack, for the layers' own forward pass.

Shapes: D inputs, O outputs, R rank, E experts, V entries of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import embedding, linear

from agentrl.training.models.peft_folder import AdapterRecord
from agentrl.training.parallel.collectives import sum_gradient, sum_values
from agentrl.training.parallel.shards import local
from agentrl.training.parallel.tensor_parallel import (
    DividedLinear,
    OneHeadLinear,
    SummedLinear,
    VocabularyEmbedding,
)


@dataclass(eq=False)
class Switch:
    """Whether adapters add anything, and what their products count."""

    scale: float
    on: bool = True


class Adapter(nn.Module):
    """The adapter of a linear layer or an embedding: ``scale · B(A(x))``.

    Args:
        layer: whose output it is added to.
        a: ``[R, D]``, or ``[R, V]`` of an embedding.
        b: ``[O, R]``.
        switch: of the model's.
    """

    def __init__(self, layer: Any, a: nn.Parameter, b: nn.Parameter, switch: Switch) -> None:
        super().__init__()
        self.A, self.B = a, b
        self._switch = switch
        # outside the module's tree, which has the layer already
        self._layer: tuple[Any] = (layer,)
        # the ranks that hold the layer together, before FSDP divides its weight further
        weight = layer.weight
        self._group: Any = weight.device_mesh.get_group() if isinstance(weight, DTensor) else None
        layer.register_forward_hook(self._add)

    def beside_chunks(self, head: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """An output layer that is called once a chunk, with what is added; the factors' gradients
        are summed over chunks in at least float32."""
        if not self._switch.on:
            return head
        dtype = torch.promote_types(self.A.dtype, torch.float32)
        a, b = self.A.to(dtype), self.B.to(dtype)
        return lambda hidden: head(hidden) + self._product(hidden.to(dtype), a, b)

    def _add(self, _layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + self._product(args[0], self.A, self.B) if self._switch.on else output

    def _product(self, given: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """What is added to this rank's outputs."""
        (layer,) = self._layer
        if isinstance(layer, VocabularyEmbedding):
            low = layer.look_up(given, local(a).T)
        elif isinstance(layer, nn.Embedding):
            low = embedding(given, a.T, layer.padding_idx)
        elif isinstance(layer, OneHeadLinear):
            low, b = linear(given, sum_gradient(a, layer.group)), layer.own(b)
        elif isinstance(layer, SummedLinear):
            low = sum_values(linear(given, local(a)), self._group)
        elif isinstance(layer, DividedLinear):
            low, b = linear(given, sum_gradient(a, self._group)), local(b)
        else:
            low = linear(given, a)
        return linear(low, b) * self._switch.scale


class StackAdapter(nn.Module):
    """The adapters of experts whose weights are one stack ``[E, O, D]``: the layer's own forward
    pass reads it with their product added.

    Args:
        layer: that holds the stack.
        name: of the stack there.
        a, b: ``[E, R, D]`` and ``[E, O, R]``.
        switch: of the model's.
    """

    def __init__(
        self, layer: nn.Module, name: str, a: nn.Parameter, b: nn.Parameter, switch: Switch
    ) -> None:
        super().__init__()
        self.A, self.B = a, b
        self._name, self._switch = name, switch
        self._kept: Any = None
        layer.register_forward_pre_hook(self._begin)
        layer.register_forward_hook(self._end, always_call=True)

    def _begin(self, layer: nn.Module, _args: tuple[Any, ...]) -> None:
        if self._switch.on:
            self._kept = layer._parameters[self._name]
            added = torch.bmm(local(self.B), local(self.A)) * self._switch.scale
            # As in ``plain``, what is computed of a parameter stands in its place.
            layer._parameters[self._name] = local(self._kept) + added  # type: ignore[assignment]

    def _end(self, layer: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        if self._kept is not None:
            layer._parameters[self._name], self._kept = self._kept, None


class Lora:
    """A model's adapters.

    Args:
        record: which there are.
        start: their factors as training begins, by name, whole.
        dtype: in which they are kept.

    Attributes:
        record: as given.
        start: as given; empty once they are taken.
        factors: A and B of each adapter by the weight that their product is added to.
    """

    def __init__(
        self, record: AdapterRecord, start: Mapping[str, Tensor], dtype: torch.dtype
    ) -> None:
        self.record = record
        self.start = dict(start)
        self.factors = record.factors()
        self._dtype = dtype
        self._switch = Switch(record.scale)

    def attach(self, hf: nn.Module) -> None:
        """Freezes a model whose layers are divided by now, and makes its adapters, whose factors
        hold nothing yet."""
        hf.requires_grad_(False)
        for name in self.record.whole:
            # It moves, so that it is kept as other parameters that do.
            parameter = hf.get_parameter(name)
            parameter.data = parameter.data.to(self._dtype)
            parameter.requires_grad_(True)
        for weight in self.factors:
            owner, _, last = weight.rpartition(".")
            layer: Any = hf.get_submodule(owner)
            a, b = self._new(layer, getattr(layer, last))
            if weight in self.record.stacks:
                layer.add_module(f"lora_{last}", StackAdapter(layer, last, a, b, self._switch))
            else:
                layer.add_module("lora", Adapter(layer, a, b, self._switch))

    def _new(self, layer: nn.Module, weight: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
        """A and B of a layer, divided as its weight is and where that lies."""
        made = {}
        for name, shape in factor_shapes(layer, weight, self.record.rank).items():
            own, device = list(shape), local(weight).device
            dim = _divided(layer, weight).get(name)
            if dim is None:
                part = torch.empty(own, dtype=self._dtype, device=device)
            else:
                mesh = weight.device_mesh  # type: ignore[attr-defined]
                own[dim] //= mesh.size()
                part = torch.empty(own, dtype=self._dtype, device=device)
                part = DTensor.from_local(part, mesh, [Shard(dim)], run_check=False)
            made[name] = nn.Parameter(part)
        return made["A"], made["B"]

    @contextmanager
    def off(self) -> Iterator[None]:
        """The base alone answers within."""
        self._switch.on = False
        try:
            yield
        finally:
            self._switch.on = True


def _divided(layer: nn.Module, weight: Tensor) -> dict[str, int]:
    """By which dimension factors lie over the ranks of a weight's mesh; others are every rank's."""
    if not isinstance(weight, DTensor):
        return {}
    if weight.ndim == 3:
        return {"A": 0, "B": 0}
    (placement,) = weight.placements
    assert isinstance(placement, Shard), "ranks share a layer by a dimension"
    # An embedding's table has a row for each input, a linear layer's for each output.
    of_outputs = placement.dim == int(isinstance(layer, nn.Embedding))
    return {"B": 0} if of_outputs else {"A": 1}


def factor_shapes(layer: Any, weight: Tensor, rank: int) -> dict[str, tuple[int, ...]]:
    """Of the whole factors of a layer; of experts' in a stack."""
    if weight.ndim == 3:
        experts, outputs, inputs = weight.shape
        return {"A": (experts, rank, inputs), "B": (experts, outputs, rank)}
    if isinstance(layer, nn.Embedding):
        return {"A": (rank, layer.num_embeddings), "B": (layer.embedding_dim, rank)}
    return {"A": (rank, layer.in_features), "B": (layer.out_features, rank)}


def merge(
    record: AdapterRecord,
    weight: str,
    part: Tensor,
    factors: Sequence[Tensor],
    ranges: Sequence[Sequence[tuple[int, int]]],
) -> Tensor:
    """A part of a frozen weight with what its adapter adds to it, in at least float32.

    Args:
        record: of the adapter.
        weight: its name.
        part: of the weight.
        factors: A and B, whole.
        ranges: which indices of each dimension the part has.
    """
    dtype = torch.promote_types(part.dtype, torch.float32)
    a, b = (factor.to(part.device, dtype) for factor in factors)
    *experts, rows, columns = (_indices(one, part.device) for one in ranges)
    if experts:
        a, b = a[experts[0]], b[experts[0]]
    if weight.removesuffix(".weight") in record.embeddings:
        added = (b.index_select(0, columns) @ a.index_select(1, rows)).T
    else:
        added = b.index_select(-2, rows) @ a.index_select(-1, columns)
    return part.to(dtype) + added * record.scale


def _indices(runs: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    own = [torch.arange(first, stop, device=device) for first, stop in runs]
    return torch.cat(own) if own else torch.empty(0, dtype=torch.int64, device=device)
