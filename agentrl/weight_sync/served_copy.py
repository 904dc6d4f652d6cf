"""Served copy: each rank keeps its part of the weights that are served, in host memory, and engines
elsewhere take them from the ranks, bucket by bucket.

It stays as it is while the trainer is a step ahead: a worker that joins late is served from it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines import ServedDtype
from agentrl.errors import StaleWeightsError
from agentrl.training import WeightPart
from agentrl.weight_sync.verify import Reference

BUCKET_BYTES = 64 * 2**20
"""Of whole tensors that an engine takes at a time; a larger one comes alone."""

Bits: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""A part's bits, as integers of its dtype's width: Ray hands numpy's arrays over without a copy."""


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where a rank's part lies in the whole tensor; see ``WeightPart``."""

    name: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    own_shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Of the whole."""
        both = zip(self.first, self.own_shape, strict=True)
        return tuple(slice(first, first + size) for first, size in both)


class ServedCopy:
    """One rank's parts, in the served dtype. Its memory is used again for the next version."""

    def __init__(self) -> None:
        self.version = -1
        self._parts: dict[str, WeightPart] = {}
        # held over a read and over all of a renewal, so that no read gets parts of two versions
        self._lock = threading.Lock()

    @torch.no_grad()
    def renew(self, parts: Iterable[WeightPart], version: int) -> Iterator[WeightPart]:
        """Copies a new version's parts, and yields the copies; it must be run to its end, by all
        ranks."""
        with self._lock:
            # A renewal that breaks off leaves no version that anyone could ask for.
            self.version = -1
            earlier, self._parts = self._parts, {}
            for part in parts:
                if not part.tensor.numel():
                    continue
                before = earlier.pop(part.name, None)
                if before is None or not _alike(before.tensor, part.tensor):
                    memory = torch.empty(part.tensor.shape, dtype=part.tensor.dtype)
                else:
                    memory = before.tensor
                memory.copy_(part.tensor)
                own = WeightPart(part.name, part.shape, part.first, memory)
                self._parts[part.name] = own
                yield own
            self.version = version

    def places(self) -> tuple[PartPlace, ...]:
        """What is kept."""
        return tuple(
            PartPlace(one.name, one.shape, one.first, tuple(one.tensor.shape))
            for one in self._parts.values()
        )

    def read(self, version: int, names: Sequence[str]) -> list[Bits]:
        """Copies of some parts.

        Raises:
            StaleWeightsError: another version is served by now.
        """
        with self._lock:
            self._require(version)
            # Copies, since Ray sends them when the lock is free again.
            return [_bits(self._parts[name].tensor).copy() for name in names]

    def tensors(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The parts themselves. What was taken is of this version where none is left to take.

        Raises:
            StaleWeightsError: another version is served by now.
        """
        # Without the lock, which an iterator that nobody ends would keep: a renewal that began
        # meanwhile may have changed the tensor that was taken last, and has changed the version.
        for name, part in self._parts.copy().items():
            self._require(version)
            yield name, part.tensor
        self._require(version)

    def _require(self, version: int) -> None:
        if self.version != version:
            raise StaleWeightsError(
                f"version {version} was asked for, and the ranks serve {self.version}; take that"
            )


class PartReader(Protocol):
    """Reads parts of the ranks' served copies from anywhere; picklable."""

    def ask(self, version: int, names: Sequence[tuple[str, ...]]) -> Any:
        """Asks for the parts of those names, by rank; returns at once."""

    def take(self, asked: Any) -> list[list[Bits]]:
        """What ``ask`` asked for, by rank.

        Raises:
            StaleWeightsError: another version is served by now.
        """


@dataclass(frozen=True, slots=True, eq=False)
class ServedWeights:
    """A version of weights that the ranks serve, and what they are verified by.

    Args:
        version: of the served copies.
        dtype: of them.
        ranks: what each rank has.
        reference: the trainer's side of the comparison.
        reader: of the ranks' copies.
    """

    version: int
    dtype: ServedDtype
    ranks: tuple[tuple[PartPlace, ...], ...]
    reference: Reference
    reader: PartReader = field(repr=False)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by their Hugging Face names; two buckets are in memory at a time.

        Raises:
            StaleWeightsError: the ranks serve newer weights by now.
        """
        buckets = self._buckets()
        asked = self._ask(buckets[0])
        for number, names in enumerate(buckets):
            found = self.reader.take(asked)
            # The next bucket travels while the engine takes this one.
            if number + 1 < len(buckets):
                asked = self._ask(buckets[number + 1])
            yield from self._wholes(names, found)

    def _places(self, names: Iterable[str]) -> list[list[PartPlace]]:
        """By rank, what it has of some tensors."""
        wanted = set(names)
        return [[place for place in own if place.name in wanted] for own in self.ranks]

    def _ask(self, names: Sequence[str]) -> Any:
        own_names = [tuple(place.name for place in own) for own in self._places(names)]
        return self.reader.ask(self.version, own_names)

    def _buckets(self) -> list[list[str]]:
        """The names of tensors that come together."""
        shapes = {place.name: place.shape for own in self.ranks for place in own}
        buckets: list[list[str]] = [[]]
        size = 0
        for name, shape in shapes.items():
            own = math.prod(shape) * getattr(torch, self.dtype).itemsize
            if buckets[-1] and size + own > BUCKET_BYTES:
                buckets.append([])
                size = 0
            buckets[-1].append(name)
            size += own
        return buckets

    def _wholes(
        self, names: Sequence[str], found: Sequence[Sequence[Bits]]
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the ranks' parts."""
        parts: dict[str, list[tuple[PartPlace, Bits]]] = {}
        for own, arrays in zip(self._places(names), found, strict=True):
            for place, bits in zip(own, arrays, strict=True):
                parts.setdefault(place.name, []).append((place, bits))
        for name in names:
            whole = np.empty(parts[name][0][0].shape, parts[name][0][1].dtype)
            for place, bits in parts.pop(name):
                whole[place.slices] = bits
            yield name, torch.from_numpy(whole).view(getattr(torch, self.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class OwnWeights:
    """Like ``ServedWeights``, for an engine beside the one rank that there is: from its memory."""

    version: int
    reference: Reference
    copy: ServedCopy = field(repr=False)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See ``ServedWeights.tensors``."""
        return self.copy.tensors(self.version)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _bits(tensor: Tensor) -> Bits:
    width = {2: torch.int16, 4: torch.int32}[tensor.itemsize]
    found: Bits = tensor.reshape(-1).view(width).numpy().reshape(tensor.shape)
    return found
