"""Shards: what this process holds of a tensor that lies over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.engines.checksum import checksum_of, shard_sums
from agentrl.engines.tensor_slice import TensorSlice


@dataclass(frozen=True, slots=True, eq=False)
class WeightPart:
    """A rank's part of a tensor of the model's folder.

    Args:
        name: in the folder.
        shape: of the whole.
        first: where the part begins in the whole, by dimension.
        tensor: the part; it may share memory with a parameter.
        is_copy: another rank has these numbers too, and counts them.
    """

    name: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    tensor: Tensor
    is_copy: bool = False

    @property
    def block(self) -> TensorSlice:
        """Where it lies."""
        return TensorSlice(self.name, self.shape, self.first, tuple(self.tensor.shape))

    def sums(self) -> Tensor:
        """Of its words, as ``shard_sums`` has them."""
        strides = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        start = sum(map(math.prod, zip(self.first, strides, strict=True)))
        return shard_sums(self.tensor, start=start, row=strides[0] if strides else None)


def whole_checksums(parts: Iterable[WeightPart]) -> dict[str, int]:
    """The checksum of each whole tensor by its name, equal on every rank; collective.

    Args:
        parts: this rank's; those of all ranks, without copies, make up the wholes.
    """
    forms, sums = [], []
    for part in parts:
        if part.is_copy:
            continue
        forms.append((part.name, part.shape, part.tensor.dtype))
        sums.append(part.sums())
    own = list(zip(forms, torch.stack(sums).tolist() if sums else [], strict=True))
    ranks: list[list[tuple[tuple[str, tuple[int, ...], torch.dtype], list[int]]]]
    ranks = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, own)
    totals: dict[tuple[str, tuple[int, ...], torch.dtype], tuple[int, int]] = {}
    for form, (words, uppers) in (found for rank in ranks for found in rank):
        # Python's integers do not wrap; ``checksum_of`` takes the sums modulo 2**64.
        before = totals.get(form, (0, 0))
        totals[form] = (before[0] + words, before[1] + uppers)
    return {form[0]: checksum_of(*form, total) for form, total in totals.items()}


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be divided, with gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def offset(tensor: Tensor) -> tuple[int, ...]:
    """Where this rank's part begins in the tensor, by dimension."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.ndim
    _, found = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(found)


def divided_as(like: Tensor, part: Tensor) -> Tensor:
    """The tensor whose part here is ``part``, and which lies over ranks as ``like`` does."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def divided_parameter(whole: nn.Parameter, mesh: DeviceMesh, dim: int) -> nn.Parameter:
    """This rank's part of a parameter that is whole and equal on every rank, or on ``meta``;
    nothing is sent.

    Args:
        whole: the parameter.
        mesh: of the ranks, one-dimensional.
        dim: the dimension that is divided; the mesh's size divides it.
    """
    device = whole.device if whole.is_meta else mesh.device_type
    own = (
        whole.detach()
        .chunk(mesh.size(), dim)[mesh.get_local_rank()]
        .to(device)
        .contiguous()
    )
    part = DTensor.from_local(own, mesh, [Shard(dim)], run_check=False)
    return nn.Parameter(part, requires_grad=whole.requires_grad)
