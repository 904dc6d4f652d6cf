"""Changes: the elements of a rank's part whose bits are others than before, in few bytes.

Their places are gaps: for each changed element how many equal ones lie before it since the last
changed one, in a byte. 255 says that there are so many, and that another byte follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.types.arrays import I64

_BLOCK = 2**20
"""Elements that are compared at once."""
_MORE = 255

Bits: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""A part's bits, as integers of its dtype's width: Ray hands numpy's arrays over without a copy."""
Places: TypeAlias = npt.NDArray[np.uint8]
"""Gaps of a flat part."""


@dataclass(frozen=True, slots=True, eq=False)
class PartBits:
    """A part of a tensor, or what changed of it.

    Args:
        bits: of the whole part in its shape, or flat, of the elements that changed.
        places: where these lie; None for a whole part.
    """

    bits: Bits
    places: Places | None = None

    @property
    def num_bytes(self) -> int:
        """That travel."""
        return self.bits.nbytes + (0 if self.places is None else self.places.nbytes)

    def put_into(self, part: Tensor) -> None:
        """Writes them into a part that holds the bits of before, on any device."""
        # Ray's memory is read-only, which torch takes by a copy alone.
        bits = torch.asarray(self.bits, copy=True, device=part.device)
        if self.places is None:
            part.copy_(bits)
            return
        flat = part.reshape(-1)
        flat[torch.from_numpy(_indices(self.places)).to(part.device)] = bits
        # A part that is not of whole rows lies in pieces, and was copied.
        if flat.data_ptr() != part.data_ptr():
            part.copy_(flat.view(part.shape))


def bits_of(tensor: Tensor) -> Bits:
    """The bits of a tensor in the host's memory, over that memory."""
    found: Bits = as_integers(tensor).numpy()
    return found


def as_integers(tensor: Tensor) -> Tensor:
    """A tensor as integers of its width, over its memory."""
    width = {2: torch.int16, 4: torch.int32}[tensor.itemsize]
    return tensor.reshape(-1).view(width).reshape(tensor.shape)


def overwrite(memory: Tensor, tensor: Tensor) -> Places | None:
    """Copies a tensor into the memory of the one before it.

    Args:
        memory: contiguous, in the host's memory.
        tensor: of the same shape and dtype, on any device.

    Returns:
        The places where bits changed; None where they are more bytes than an eighth of the
        elements, and are not kept.
    """
    own, new = bits_of(memory).reshape(-1), tensor.reshape(-1)
    runs: list[Places] = [np.empty(0, np.uint8)]
    last = -1
    for start in range(0, own.size, _BLOCK):
        before = own[start : start + _BLOCK]
        after = bits_of(new[start : start + _BLOCK].cpu())
        found = np.flatnonzero(before != after) + start
        before[:] = after
        # What is not kept is not made either.
        if found.size and sum(map(len, runs)) <= own.size // 8:
            runs.append(_gaps(found, last))
            last = int(found[-1])
    places = np.concatenate(runs)
    return places if len(places) <= own.size // 8 else None


def changed(part: Tensor, places: Places) -> PartBits:
    """The elements of a part at some places, as a copy."""
    return PartBits(bits_of(part).reshape(-1)[_indices(places)], places)


def _gaps(found: I64, last: int) -> Places:
    """Of changed elements ``found``, at least one, behind that at ``last``."""
    equal = np.diff(found, prepend=last) - 1
    ends = np.cumsum(equal // _MORE + 1)
    gaps = np.full(ends[-1], _MORE, np.uint8)
    gaps[ends - 1] = equal % _MORE
    return gaps


def _indices(places: Places) -> I64:
    """Of the changed elements in the flat part."""
    ends = np.flatnonzero(places != _MORE)
    return np.cumsum(places, dtype=np.int64)[ends] + np.arange(len(ends))
