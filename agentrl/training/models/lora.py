"""LoRA: adapters of low rank beside the frozen layers of a model (arXiv:2106.09685).

- A layer keeps its class, its parameters and their names; a hook adds what its adapter computes.
- Adapters are made after tensor parallelism has divided the layers, each divided as its own.
- Factors are kept in at least float32 and cast for the forward pass, as all parameters are.

Shapes: D inputs, O outputs, R rank, V entries of a vocabulary, E experts of a rank, S rows of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import embedding, linear

from agentrl.training.models.mixture import grouped_product
from agentrl.training.models.peft_folder import AdapterRecord
from agentrl.training.parallel.collectives import sum_gradient, sum_values
from agentrl.training.parallel.shards import divided_parameter, local
from agentrl.training.parallel.tensor_parallel import (
    DividedLinear,
    OneHeadLinear,
    SummedLinear,
    VocabularyEmbedding,
)


class Adapter(nn.Module):
    """The adapter of a linear layer or an embedding: ``scale · B(A(x))``.

    Args:
        layer: whose output it is added to.
        lora: of the model.
        a: ``[R, D]``, or ``[R, V]`` of an embedding.
        b: ``[O, R]``.
    """

    def __init__(self, layer: Any, lora: Lora, a: nn.Parameter, b: nn.Parameter) -> None:
        super().__init__()
        self.A, self.B = a, b
        self._lora = lora
        # the ranks that hold the layer together, before FSDP divides its weight further
        weight = layer.weight
        self._group: Any = (
            weight.device_mesh.get_group() if isinstance(weight, DTensor) else None
        )
        layer.register_forward_hook(self._add)

    def _add(self, layer: Any, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if not self._lora.is_on:
            return output
        (given,) = args
        a: Tensor = self.A
        b: Tensor = self.B
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
        return output + linear(low, b) * self._lora.record.scale


class ExpertAdapter(nn.Module):
    """The adapters of a stack of experts, one for each: ``scale · B(A(x))``.

    Args:
        lora: of the model.
        a: ``[E, R, D]``, of this rank's experts.
        b: ``[E, O, R]``.
    """

    def __init__(self, lora: Lora, a: nn.Parameter, b: nn.Parameter) -> None:
        super().__init__()
        self.A, self.B = a, b
        self._lora = lora

    def forward(self, rows: Tensor, ends: Tensor, output: Tensor) -> Tensor:
        """``[S, O]``: what experts made of ``[S, D]`` rows in their order, with what is added."""
        if not self._lora.is_on:
            return output
        low = grouped_product(rows, local(self.A).mT, ends)
        return (
            output + grouped_product(low, local(self.B).mT, ends) * self._lora.record.scale
        )


class Lora:
    """A model's adapters.

    Args:
        record: which there are.
        dtype: in which what is trained is kept.

    Attributes:
        record: as given.
        factors: the names of A and B of each adapter, by the weight that their product is added to.
        is_on: whether adapters add anything.
    """

    def __init__(self, record: AdapterRecord, dtype: torch.dtype) -> None:
        self.record = record
        self.factors = record.factors()
        self.is_on = True
        self._dtype = dtype

    def attach(self, hf: nn.Module) -> None:
        """Freezes a model whose layers are divided by now, and makes its adapters, whose factors
        hold nothing yet."""
        hf.requires_grad_(False)
        for name in self.record.whole:
            # It moves, so that it is kept as other parameters that do.
            parameter = hf.get_parameter(name)
            parameter.data = parameter.data.to(self._dtype)
            parameter.requires_grad_(True)
        for name in self.record.layers:
            layer: Any = hf.get_submodule(name)
            new = self._new(f"{name}.weight", layer.weight)
            layer.add_module("lora", Adapter(layer, self, *new))
        for name in self.record.stacks:
            place, _, kind = name.rpartition(".")
            experts: Any = hf.get_submodule(place)
            experts.lora[kind] = ExpertAdapter(
                self, *self._new(name, hf.get_parameter(name))
            )

    def _new(self, name: str, weight: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
        """A and B of a weight, divided as it is and where it lies."""
        device = local(weight).device
        a, b = (
            nn.Parameter(torch.empty(shape, dtype=self._dtype, device=device))
            for shape in self.record.shapes(name, weight.shape)
        )
        if isinstance(weight, DTensor):
            (placement,) = weight.placements
            assert isinstance(placement, Shard), "ranks share a layer by a dimension"
            if name in self.record.stacks:
                a, b = (divided_parameter(one, weight.device_mesh, 0) for one in (a, b))
            # An embedding's table has a row for each input, a linear layer's for each output.
            elif placement.dim == int(self.record.is_transposed(name)):
                b = divided_parameter(b, weight.device_mesh, 0)
            else:
                a = divided_parameter(a, weight.device_mesh, 1)
        return a, b

    @contextmanager
    def off(self) -> Iterator[None]:
        """The base alone answers within."""
        self.is_on = False
        try:
            yield
        finally:
            self.is_on = True


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
    *experts, rows, columns = (
        torch.tensor([one for run in runs for one in range(*run)], device=part.device)
        for runs in ranges
    )
    if experts:
        a, b = (factor[experts[0]] for factor in (a, b))
    if record.is_transposed(weight):
        a, b = b.mT, a.mT
    added = b[..., rows, :] @ a[..., columns]
    return part.to(dtype) + added * record.scale
