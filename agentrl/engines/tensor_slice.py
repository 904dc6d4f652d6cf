"""Tensor slices: which block of which tensor someone holds or wants, by the names of the model's
folder. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A block of a tensor.

    Args:
        name: of the tensor in the model's folder.
        shape: of the whole tensor.
        first: where the block begins in it, by dimension.
        size: the block's own shape.
    """

    name: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, name: str, shape: Sequence[int]) -> TensorSlice:
        """All of a tensor."""
        return cls(name, tuple(shape), (0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """Elements of the block."""
        return math.prod(self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The block as an index of the whole tensor."""
        return self.slices_of((0,) * len(self.shape))

    def slices_of(self, first: Sequence[int]) -> tuple[slice, ...]:
        """The block as an index of a larger block that begins at ``first``."""
        return tuple(
            slice(own - start, own - start + size)
            for own, start, size in zip(self.first, first, self.size, strict=True)
        )

    def part(self, dim: int, start: int, stop: int) -> TensorSlice:
        """The places ``start`` to ``stop`` of the block along a dimension."""
        first, size = list(self.first), list(self.size)
        first[dim] += start
        size[dim] = stop - start
        return TensorSlice(self.name, self.shape, tuple(first), tuple(size))

    def overlap(self, other: TensorSlice) -> TensorSlice | None:
        """What two blocks of one tensor share; None where that is nothing."""
        both = zip(self.first, self.size, other.first, other.size, strict=True)
        ends = [(max(a, b), min(a + m, b + n)) for a, m, b, n in both]
        if any(start >= stop for start, stop in ends):
            return None
        first, size = [a for a, _ in ends], [b - a for a, b in ends]
        return TensorSlice(self.name, self.shape, tuple(first), tuple(size))

    def without(self, inner: TensorSlice) -> list[TensorSlice]:
        """The rest of the block, as disjoint ones, without one that lies in it."""
        rest, left = [], self
        for dim, (start, size) in enumerate(zip(inner.first, inner.size, strict=True)):
            start -= left.first[dim]
            for part in ((0, start), (start + size, left.size[dim])):
                if part[0] < part[1]:
                    rest.append(left.part(dim, *part))
            left = left.part(dim, start, start + size)
        return rest
