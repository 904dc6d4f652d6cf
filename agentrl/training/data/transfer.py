"""Transfer: arrays of the host on a device in one copy, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 8
"""Bytes; a tensor of any dtype here may begin at a multiple of it."""


def to_device(
    arrays: Mapping[str, npt.NDArray[Any]], device: torch.device
) -> dict[str, Tensor]:
    """The arrays as tensors by name, parts of one buffer.

    Args:
        arrays: of dtypes that torch has; copied, so that they may be read-only.
        device: to a GPU the buffer goes from pinned memory.
    """
    firsts, size = {}, 0
    for name, array in arrays.items():
        firsts[name] = size
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = host.numpy()
    for name, array in arrays.items():
        first = firsts[name]
        memory[first : first + array.nbytes].view(array.dtype)[:] = array.reshape(-1)
    # torch hands pinned memory to nobody else before the copy has read it.
    there = host.to(device, non_blocking=True)
    return {
        name: there[firsts[name] : firsts[name] + array.nbytes]
        .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        .view(array.shape)
        for name, array in arrays.items()
    }
