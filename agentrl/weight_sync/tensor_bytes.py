"""A tensor's bytes, as servers and checksums want them."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.engines import ServedDtype
from agentrl.engines.weights import WeightArray


@torch.no_grad()
def to_array(name: str, tensor: Tensor, dtype: ServedDtype) -> WeightArray:
    """A copy of a whole tensor in the servers' dtype.

    Args:
        name: its Hugging Face name.
        tensor: in any dtype, on any device; it may share memory with a parameter that the next step
            changes.
        dtype: as served.
    """
    own = torch.empty(tensor.shape, dtype=getattr(torch, dtype), device="cpu")
    own.copy_(tensor.detach())
    return WeightArray(name, dtype, tuple(tensor.shape), own.reshape(-1).view(torch.uint8).numpy())


def to_tensor(array: WeightArray) -> Tensor:
    """The tensor over the memory of what ``to_array`` returned."""
    return torch.from_numpy(array.data).view(getattr(torch, array.dtype)).reshape(array.shape)
