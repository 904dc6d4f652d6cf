"""Shards: what this process holds of a tensor that lies over ranks."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


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
