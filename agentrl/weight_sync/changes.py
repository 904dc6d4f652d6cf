"""Changes: the elements of a rank's part whose bits are others than before, in few bytes.

Their places have two forms, of which the shorter is taken. So they never need more than a bit an
element, and their length tells which form it is.

- A bitmap: a bit an element, a byte's highest one first.
- Gaps: for each changed element how many equal ones lie before it since the last changed one. 255
  in a byte says that there are so many, and that another byte follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 2**20
"""Elements that are compared at once; a multiple of 8."""
_MORE = 255

Bits: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""A part's bits, as integers of its dtype's width: Ray hands numpy's arrays over without a copy."""
Places: TypeAlias = npt.NDArray[np.uint8]
"""Which elements of a flat part changed, in one of the two forms."""


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
        flat[torch.from_numpy(_where(self.places, flat.numel())).to(part.device)] = bits
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
        The places where bits changed; None where the whole takes fewer bytes than what changed.
    """
    own, new = bits_of(memory).reshape(-1), tensor.reshape(-1)
    bitmap = np.empty(-(-own.size // 8), np.uint8)
    for start in range(0, own.size, _BLOCK):
        before = own[start : start + _BLOCK]
        after = bits_of(new[start : start + _BLOCK].cpu())
        bitmap[start // 8 : (start + _BLOCK) // 8] = np.packbits(before != after)
        before[:] = after
    count = int(np.bitwise_count(bitmap).sum(dtype=np.int64))
    places = _gaps(bitmap) if count < len(bitmap) else bitmap
    places = places if len(places) < len(bitmap) else bitmap
    return places if places.nbytes + count * own.itemsize < own.nbytes else None


def changed(part: Tensor, places: Places) -> PartBits:
    """The elements of a part at some places, as a copy."""
    flat = bits_of(part).reshape(-1)
    return PartBits(flat[_where(places, flat.size)], places)


def _gaps(bitmap: Places) -> Places:
    """The places of a bitmap as gaps."""
    runs = [bitmap[:0]]
    last = -1
    for start in range(0, len(bitmap), _BLOCK // 8):
        bits = np.unpackbits(bitmap[start : start + _BLOCK // 8])
        found = np.flatnonzero(bits.view(np.bool_)) + 8 * start
        if not found.size:
            continue
        equal = np.diff(found, prepend=last) - 1
        last = int(found[-1])
        ends = np.cumsum(equal // _MORE + 1)
        run = np.full(ends[-1], _MORE, np.uint8)
        run[ends - 1] = equal % _MORE
        runs.append(run)
    return np.concatenate(runs)


def _where(places: Places, size: int) -> npt.NDArray[Any]:
    """What picks those places from a flat part of ``size``: a mask, or their indices."""
    if len(places) == -(-size // 8):
        return np.unpackbits(places, count=size).view(np.bool_)
    (ends,) = np.nonzero(places != _MORE)
    return np.cumsum(places, dtype=np.int64)[ends] + np.arange(len(ends))
