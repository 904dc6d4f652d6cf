"""Checksum: compares the weights of trainer and engine without moving them (docs/controller.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 20


def tensor_checksum(bits: npt.NDArray[np.unsignedinteger[Any]], offset: int = 0) -> int:
    """Σ bits_i·(2i+1) mod 2**64 over the flat index i.

    It is additive over shards: the sum of the shards' checksums, each at its own ``offset``, is the
    checksum of the whole tensor mod 2**64.

    Args:
        bits: the tensor's raw bits as unsigned integers of the dtype's width (uint32 for float32,
            uint16 for bfloat16), in the order of the flat index.
        offset: flat index, within the whole tensor, of the first element of ``bits``.

    Returns:
        An integer in [0, 2**64).

    Raises:
        TypeError: ``bits`` is no array of unsigned integers.
    """
    if bits.dtype.kind != "u":
        raise TypeError(
            f"a checksum is over the raw bits as unsigned integers, got dtype {bits.dtype}; use "
            f".view()"
        )
    flat = bits.reshape(-1)
    total = 0
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.uint64)
        first = 2 * (offset + start) + 1
        weights = np.arange(first, first + 2 * block.size, 2, dtype=np.uint64)
        total += int((block * weights).sum(dtype=np.uint64))
    return total % 2**64
