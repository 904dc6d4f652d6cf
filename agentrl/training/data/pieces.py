"""Pieces: cuts groups into sets of samples that share a beginning and lie in one micro-batch.

- A piece is never divided. Samples that share nothing are pieces of their own.
- The samples of a unit stay on one coordinate: a sample alone, a trajectory or a group.

A sample's place is its index in the batch's ``PrefixOrder``. Axes: S samples.
"""

from __future__ import annotations

import itertools
from bisect import bisect, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from agentrl.training.data.prefix_tree import PrefixOrder

I64 = npt.NDArray[np.int64]
Places = tuple[int, ...]
"""Places of samples, ascending."""

_Number = TypeVar("_Number", int, float)


class SharedSizes:
    """Tokens and cost of sets of samples that lie in one micro-batch.

    A token costs 1, and each pair of a query and an earlier key 2/ℓ: n tokens alone cost n + n²/ℓ.
    A common beginning of s tokens is computed once, so each further sample costs s + s²/ℓ less.

    Args:
        lengths: ``[S]`` tokens of each sample.
        prefixes: what they have in common.
        length_scale: ℓ, tokens.

    Attributes:
        rows: the batch's row of each place.
    """

    def __init__(self, lengths: I64, prefixes: PrefixOrder, length_scale: float) -> None:
        self.rows: list[int] = prefixes.order.tolist()
        self._lengths: list[int] = lengths[prefixes.order].tolist()
        self._shared: list[int] = prefixes.shared.tolist()
        self._scale = length_scale

    def tokens(self, places: Sequence[int]) -> int:
        """Packed tokens."""
        return self._sum(places, lambda length: length)

    def cost(self, places: Sequence[int]) -> float:
        """What a pass over them costs."""
        return self._sum(places, self._cost_of)

    def overlap(self, piece: Sequence[int], unit: Places) -> int:
        """Tokens that a micro-batch holds once for both.

        Args:
            piece: ascending places.
            unit: places of which the piece has none.
        """
        if len(unit) > 1:
            return (
                self.tokens(piece)
                + self.tokens(unit)
                - self.tokens(sorted((*piece, *unit)))
            )
        place = unit[0]
        index = bisect(piece, place)
        return max(
            self._common(piece[index - 1], place) if index else 0,
            self._common(place, piece[index]) if index < len(piece) else 0,
        )

    def cost_of_parts(self, piece: Places) -> list[tuple[float, float]]:
        """What the places before each cut between neighbours cost alone, and those behind it."""
        whole = self.cost(piece)
        found = []
        before = 0.0
        again = 0.0
        for one, other in itertools.pairwise(piece):
            before += self._cost_of(self._lengths[one]) - again
            again = self._cost_of(self._common(one, other))
            found.append((before, whole - before + again))
        return found

    def runs(self, places: Iterable[int]) -> list[list[int]]:
        """Ascending places, cut where nothing is shared."""
        found: list[list[int]] = []
        for place in places:
            if not found or not self._common(found[-1][-1], place):
                found.append([])
            found[-1].append(place)
        return found

    def _common(self, one: int, other: int) -> int:
        return min(self._shared[one + 1 : other + 1])

    def _cost_of(self, length: int) -> float:
        return length + length * length / self._scale

    def _sum(self, places: Sequence[int], of: Callable[[int], _Number]) -> _Number:
        whole = sum(of(self._lengths[place]) for place in places)
        return whole - sum(
            of(self._common(one, other)) for one, other in itertools.pairwise(places)
        )


@dataclass(frozen=True, slots=True)
class Bundle:
    """Pieces that stay on one coordinate.

    Args:
        group: its samples' group.
        pieces: places of each piece; more than one where a unit is longer than a micro-batch.
        units: places of each unit.
    """

    group: int
    pieces: tuple[Places, ...]
    units: tuple[Places, ...]

    @classmethod
    def of(cls, group: int, units: Iterable[Places]) -> Bundle:
        """One piece of several units."""
        members = tuple(units)
        return cls(group, (tuple(sorted(itertools.chain(*members))),), members)

    def cuts(self) -> Iterator[int]:
        """Places of the only piece before a cut that divides no unit."""
        if len(self.pieces) > 1:
            return
        ends = {unit[0]: unit[-1] for unit in self.units}
        end = -1
        for number, (one, other) in enumerate(itertools.pairwise(self.pieces[0]), 1):
            end = max(end, ends.get(one, -1))
            if end < other:
                yield number

    def divided(self, cut: int) -> tuple[Bundle, Bundle]:
        """The units before a cut, and those behind it."""
        border = self.pieces[0][cut]
        before = [unit for unit in self.units if unit[0] < border]
        behind = [unit for unit in self.units if unit[0] >= border]
        return Bundle.of(self.group, before), Bundle.of(self.group, behind)


def bundles_of(
    group: int, units: Iterable[Places], sizes: SharedSizes, capacity: int
) -> list[Bundle]:
    """The bundles of a group: the longest unit first, each to the piece that shares most with it
    and has room.

    Args:
        group: its number.
        units: of the group.
        sizes: of samples.
        capacity: the most tokens of a piece; no sample is longer.
    """
    whole: list[Bundle] = []
    pieces: list[list[int]] = []
    tokens: list[int] = []
    members: list[list[Places]] = []
    for unit in sorted(units, key=lambda own: (-sizes.tokens(own), sizes.rows[own[0]])):
        alone = sizes.tokens(unit)
        if alone > capacity:
            apart = bundles_of(group, [(place,) for place in unit], sizes, capacity)
            whole.append(Bundle(group, tuple(own.pieces[0] for own in apart), (unit,)))
            continue
        shared = [sizes.overlap(piece, unit) for piece in pieces]
        homes = [
            i for i, own in enumerate(shared) if own and tokens[i] + alone - own <= capacity
        ]
        if homes:
            home = max(homes, key=lambda i: (shared[i], -i))
            tokens[home] += alone - shared[home]
        else:
            home = len(pieces)
            pieces.append([])
            members.append([])
            tokens.append(alone)
        for place in unit:
            insort(pieces[home], place)
        members[home].append(unit)
    return whole + [Bundle.of(group, own) for own in members]
