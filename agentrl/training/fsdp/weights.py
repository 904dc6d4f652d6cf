"""Weights: whole tensors under their Hugging Face names, and checksums of shards."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.models.packed_model import PREFIX, PackedModel


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
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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
        start = 0
        if isinstance(tensor, DTensor):
            _, offset = compute_local_shape_and_global_offset(
                tensor.shape, tensor.device_mesh, tensor.placements
            )
            row = math.prod(tensor.shape[1:])
            start, tensor = offset[0] * row if offset else 0, tensor.to_local()
        sums[name] = tensor_checksum(tensor, start=start)
    total = torch.stack([*sums.values()])
    dist.all_reduce(total)
    return {name: value % 2**64 for name, value in zip(sums, total.tolist(), strict=True)}


def tensor_checksum(tensor: Tensor, *, start: int = 0) -> Tensor:
    """Σ bits_i · (2i + 1) modulo 2⁶⁴ over flat indices i, as an int64 scalar tensor.

    It is additive over shards that start at their own index (docs/controller.md), so that trainer
    and engine compare weights without gathering them.

    Args:
        tensor: floating point, any shape.
        start: flat index of its first element in the whole tensor.
    """
    bits = tensor.contiguous().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    )
    flat = bits.reshape(-1).to(torch.int64)
    if tensor.itemsize < 8:
        flat = flat & (2 ** (8 * tensor.itemsize) - 1)  # the bits, not a signed number
    index = torch.arange(start, start + flat.numel(), device=flat.device)
    return (flat * (2 * index + 1)).sum()
