"""Served copy: each rank keeps its part of the weights that are served, in host memory, and engines
elsewhere take them from the ranks, bucket by bucket.

It stays as it is while the trainer is a step ahead: a worker that joins late is served from it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from agentrl.engines import ServedDtype
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.errors import StaleWeightsError
from agentrl.training import WeightPart
from agentrl.weight_sync.changes import (
    PartBits,
    Places,
    as_integers,
    bits_of,
    changed,
    overwrite,
)
from agentrl.weight_sync.verify import TrainerReference

BUCKET_BYTES = 64 * 2**20
"""Of whole tensors that an engine takes at a time; a larger one comes alone."""


class ServedCopy:
    """One rank's parts, in the served dtype. Its memory is used again for the next version.

    Attributes:
        version: of the parts; -1 before any, and where a renewal broke off.
        checksum: of all ranks' tensors, noted once they are whole; None as long as they are not.
    """

    def __init__(self) -> None:
        self.version = -1
        self.checksum: Mapping[str, int] | None = None
        self._parts: dict[str, WeightPart] = {}
        self._changes: dict[str, Places] = {}
        # held over a read and over all of a renewal, so that no read gets parts of two versions
        self._lock = threading.Lock()

    @torch.no_grad()
    def renew(
        self, parts: Iterable[WeightPart], version: int, *, changes: bool = False
    ) -> Iterator[WeightPart]:
        """Copies a new version's parts, and yields the copies; it must be run to its end, by all
        ranks.

        Args:
            parts: this rank's.
            version: of them.
            changes: note which elements differ from those of the version before, in at most a byte
                for eight of them.
        """
        with self._lock:
            # A renewal that breaks off leaves no version that anyone could ask for.
            self.version, self.checksum = -1, None
            earlier, self._parts, self._changes = self._parts, {}, {}
            for part in parts:
                if part.is_copy or not part.tensor.numel():
                    continue
                before = earlier.pop(part.name, None)
                memory = None if before is None else before.tensor
                if memory is None or not _alike(memory, part.tensor):
                    memory = torch.empty(part.tensor.shape, dtype=part.tensor.dtype)
                    memory.copy_(part.tensor)
                elif not changes:
                    memory.copy_(part.tensor)
                elif (places := overwrite(memory, part.tensor)) is not None:
                    self._changes[part.name] = places
                own = WeightPart(part.name, part.shape, part.first, memory)
                self._parts[part.name] = own
                yield own
            self.version = version

    def places(self) -> tuple[TensorSlice, ...]:
        """What is kept."""
        return tuple(part.block for part in self._parts.values())

    def read(
        self, version: int, names: Sequence[str], *, changes: bool = False
    ) -> list[PartBits]:
        """Copies of some parts; with ``changes`` what changed of those of which it is known.

        Raises:
            StaleWeightsError: another version is served by now.
        """
        with self._lock:
            self._require(version)
            return [self._read(name, changes=changes) for name in names]

    def _read(self, name: str, *, changes: bool) -> PartBits:
        """A copy, since Ray sends it when the lock is free again."""
        own = self._parts[name].tensor
        if changes and name in self._changes:
            return changed(own, self._changes[name])
        return PartBits(bits_of(own).copy())

    def parts(self, version: int) -> Iterator[WeightPart]:
        """The parts themselves. What was taken is of this version where none is left to take.

        Raises:
            StaleWeightsError: another version is served by now.
        """
        # Without the lock, which an iterator that nobody ends would keep: a renewal that began
        # meanwhile may have changed the tensor that was taken last, and has changed the version.
        for part in self._parts.copy().values():
            self._require(version)
            yield part
        self._require(version)

    def _require(self, version: int) -> None:
        if self.version != version:
            raise StaleWeightsError(
                f"version {version} was asked for, and the ranks serve {self.version}; take that"
            )


class PartReader(Protocol):
    """Reads parts of the ranks' served copies from anywhere; picklable."""

    def ask(self, version: int, names: Sequence[tuple[str, ...]], changes: bool) -> Any:
        """Asks for the parts of those names, by rank, or what ``changes`` of them; returns at
        once."""

    def take(self, asked: Any) -> list[list[PartBits]]:
        """What ``ask`` asked for, by rank.

        Raises:
            StaleWeightsError: another version is served by now.
        """

    def root(self, method: str, *args: Any) -> Any:
        """Calls a method of the ``GroupRoot`` of the trainer's rank 0."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedWeights:
    """A version of weights that the ranks serve, and what they are verified by.

    Args:
        version: of the served copies.
        dtype: of them.
        ranks: what each rank has.
        reference: the trainer's side of the comparison.
        reader: of the ranks' copies.
        base: checksums of the weights whose changes the ranks know; None where they know none.
    """

    version: int
    dtype: ServedDtype
    ranks: tuple[tuple[TensorSlice, ...], ...]
    reference: TrainerReference
    reader: PartReader = field(repr=False)
    base: Mapping[str, int] | None = field(default=None, repr=False)

    def tensors(self, base: Callable[[str], Tensor] | None = None) -> Delivery:
        """Whole tensors by their Hugging Face names, as they come.

        Args:
            base: copies of the tensors that ``base`` has the checksums of, by name; what changed
                alone is then asked for.
        """
        return Delivery(self, base)

    def announced(self) -> Iterator[tuple[str, Tensor]]:
        """Names, and tensors without memory (torch's device ``meta``), for servers that the
        trainer's rank 0 sends them to."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        for name, shape in self.shapes.items():
            yield name, torch.empty(shape, dtype=dtype, device="meta")

    def only(self, names: Set[str]) -> ServedWeights:
        """Some of them."""
        ranks = [tuple(place for place in own if place.name in names) for own in self.ranks]
        return replace(self, ranks=tuple(ranks))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the whole tensors, by name."""
        return {place.name: place.shape for own in self.ranks for place in own}


class Delivery:
    """``(name, whole tensor)`` of served weights; two buckets are in memory at a time. It can be
    iterated once, which raises a ``StaleWeightsError`` where the ranks serve newer weights by now.

    Args:
        weights: as the ranks keep them.
        base: see ``ServedWeights.tensors``.

    Attributes:
        num_bytes: that came so far.
    """

    def __init__(
        self, weights: ServedWeights, base: Callable[[str], Tensor] | None
    ) -> None:
        self.num_bytes = 0
        self._weights = weights
        self._base = base
        self._dtype: torch.dtype = getattr(torch, weights.dtype)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        buckets = self._buckets()
        asked = self._ask(buckets[0])
        for number, names in enumerate(buckets):
            found = self._weights.reader.take(asked)
            # The next bucket travels while the engine takes this one.
            if number + 1 < len(buckets):
                asked = self._ask(buckets[number + 1])
            yield from self._wholes(names, found)

    def _places(self, names: Iterable[str]) -> list[list[TensorSlice]]:
        """By rank, what it has of some tensors."""
        wanted = set(names)
        return [
            [place for place in own if place.name in wanted] for own in self._weights.ranks
        ]

    def _ask(self, names: Sequence[str]) -> Any:
        own_names = [tuple(place.name for place in own) for own in self._places(names)]
        changes = self._base is not None
        return self._weights.reader.ask(self._weights.version, own_names, changes)

    def _buckets(self) -> list[list[str]]:
        """The names of tensors that come together."""
        buckets: list[list[str]] = [[]]
        size = 0
        for name, shape in self._weights.shapes.items():
            own = math.prod(shape) * self._dtype.itemsize
            if buckets[-1] and size + own > BUCKET_BYTES:
                buckets.append([])
                size = 0
            buckets[-1].append(name)
            size += own
        return buckets

    def _wholes(
        self, names: Sequence[str], found: Sequence[Sequence[PartBits]]
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the ranks' parts."""
        parts: dict[str, list[tuple[TensorSlice, PartBits]]] = {}
        for own, come in zip(self._places(names), found, strict=True):
            for place, part in zip(own, come, strict=True):
                parts.setdefault(place.name, []).append((place, part))
                self.num_bytes += part.num_bytes
        for name in names:
            own_parts = parts.pop(name)
            if self._base is None:
                whole = torch.empty(own_parts[0][0].shape, dtype=self._dtype)
                bits = bits_of(whole)
                for place, part in own_parts:
                    bits[place.slices] = part.bits
            else:
                whole = self._base(name)
                for place, part in own_parts:
                    part.put_into(as_integers(whole)[place.slices])
            yield name, whole


@dataclass(frozen=True, slots=True, eq=False)
class OwnWeights:
    """Like ``ServedWeights``, for an engine beside the one rank that there is: from its memory."""

    version: int
    reference: TrainerReference
    copy: ServedCopy = field(repr=False)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See ``ServedWeights.tensors``."""
        for part in self.copy.parts(self.version):
            yield part.name, part.tensor


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
