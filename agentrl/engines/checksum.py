"""Checksum: compares the weights of trainer and engine without moving them (docs/controller.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 20


class HeldTensor(NamedTuple):
    """A tensor as a server holds it.

    Args:
        name: its own name, and where of the server it lies, for messages.
        parts: the Hugging Face tensors that it is made of.
    """

    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """What servers hold after an update.

    Args:
        sent: checksum of each Hugging Face tensor that they were sent.
        told: the digests that all of them told alike; empty where they tell none.
    """

    sent: Mapping[str, int]
    told: Mapping[HeldTensor, str]

    def fault_since(self, earlier: HeldWeights) -> str:
        """The first tensor whose digest did not follow what was sent since ``earlier``, whose bits
        or digest alone changed; empty where all of them did.

        Ranks that share a tensor are one: a change may lie in the part of a single rank.
        """
        changed = {name for name, value in self.sent.items() if earlier.sent.get(name) != value}
        moved: dict[tuple[str, ...], bool] = {}
        for held, digest in self.told.items() if earlier.told else ():
            has_moved = moved.get(held.parts, False) or earlier.told.get(held) != digest
            moved[held.parts] = has_moved
        for parts, has_moved in moved.items():
            if self.sent.keys() >= set(parts) and has_moved == changed.isdisjoint(parts):
                found = "other bits than before" if has_moved else "the bits of before"
                sent = "the same" if has_moved else "new"
                return f"{found} in {' + '.join(parts)}, of which {sent} ones were sent"
        return ""


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
