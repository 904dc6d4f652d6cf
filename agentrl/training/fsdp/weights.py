"""Weights: whole tensors under their Hugging Face names, and checksums of shards."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.training.fsdp.sharding import is_first_copy, sharded_parameters
from agentrl.training.models.names import PREFIX
from agentrl.training.models.packed_model import PackedModel


@torch.no_grad()
def full_weights(model: PackedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """``(name, whole tensor)`` one at a time; a tied weight comes once, under its first name.

    - A tensor is cast before it is gathered, for half the bytes on the wire and the least memory.
    - Each tensor is a collective, so every rank must run the iteration to its end.
    - A tensor may share memory with the parameter: copy it before the next optimizer step.

    Args:
        model: of any backend.
        dtype: as served.

    Raises:
        TrainingError: weights are gathered.
    """
    for name, tensor in _shards(model, dtype):
        yield name, whole_tensor(tensor)


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor gathered from all ranks: of one that is divided over ``tp`` too, FSDP's shards of a
    part first."""
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, (*within, divided) = tensor.device_mesh, tensor.placements
    names = mesh.mesh_dim_names
    assert names is not None, "rank_mesh names them"
    if names[-1] != "tp":
        return tensor.full_tensor()
    assert isinstance(divided, Shard), "divide_model divides by a dimension"
    shape = list(tensor.shape)
    shape[divided.dim] //= mesh.size(len(names) - 1)
    part = DTensor.from_local(
        tensor.to_local(),
        mesh[names[:-1]],
        [kind if kind.is_replicate() else Shard(0) for kind in within],
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    ).full_tensor()
    return DTensor.from_local(part, mesh[names[-1:]], [divided], run_check=False).full_tensor()


def _shards(model: PackedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in sharded_parameters(model).items():
        yield name.removeprefix(PREFIX), parameter.detach().to(dtype)


@torch.no_grad()
def checksums(model: PackedModel, dtype: torch.dtype) -> dict[str, int]:
    """A checksum of each weight in ``dtype`` by name, equal on every rank; shards are summed, not
    gathered.

    Raises:
        TrainingError: weights are gathered already.
    """
    sums = {}
    for name, tensor in _shards(model, dtype):
        start, row, is_counted = 0, None, is_first_copy(tensor)
        if isinstance(tensor, DTensor):
            _, offset = compute_local_shape_and_global_offset(
                tensor.shape, tensor.device_mesh, tensor.placements
            )
            strides = [math.prod(tensor.shape[dim + 1 :]) for dim in range(tensor.ndim)]
            start = sum(map(math.prod, zip(offset, strides, strict=True)))
            row, tensor = strides[0] if strides else None, tensor.to_local()
        own = tensor_checksum(tensor, start=start, row=row)
        sums[name] = own if is_counted else torch.zeros_like(own)
    total = torch.stack([*sums.values()])
    dist.all_reduce(total)
    return {name: value % 2**64 for name, value in zip(sums, total.tolist(), strict=True)}


def tensor_checksum(tensor: Tensor, *, start: int = 0, row: int | None = None) -> Tensor:
    """Σ bits_i · (2i + 1) modulo 2⁶⁴ over flat indices i, as an int64 scalar tensor.

    It is additive over shards that start at their own index (docs/controller.md), so that trainer
    and engine compare weights without gathering them.

    Args:
        tensor: floating point, any shape.
        start: flat index of its first element in the whole tensor.
        row: how far the whole tensor's rows are apart; None where the rows here are whole.
    """
    bits = tensor.contiguous().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    )
    flat = bits.reshape(-1).to(torch.int64)
    if tensor.itemsize < 8:
        flat = flat & (2 ** (8 * tensor.itemsize) - 1)  # the bits, not a signed number
    index = torch.arange(start, start + flat.numel(), device=flat.device)
    width = math.prod(tensor.shape[1:])
    if row is not None and row != width and flat.numel():
        rows = torch.arange(tensor.shape[0], device=flat.device)[:, None] * row
        index = (start + rows + torch.arange(width, device=flat.device)).reshape(-1)
    return (flat * (2 * index + 1)).sum()
