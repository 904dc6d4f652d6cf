"""Balance: spreads bundles of samples over coordinates so that the most loaded one has least.

- The costliest bundle goes to the least loaded coordinate.
- Bundles then change places, or are divided, while the highest load falls. The common beginning of
  a divided bundle is computed twice, which its parts' costs contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentrl.training.data.pieces import Bundle, SharedSizes

_CLOSE = 1.01
"""The highest load over the mean at which nothing is moved any more."""

_LEAST_GAIN = 1e-3
"""Of the mean load: what a move must save of the highest one."""


class _Swap(NamedTuple):
    """A bundle of the most loaded coordinate and one of another, which may be None."""

    highest: float
    own: int
    other: int
    theirs: int | None


class _Division(NamedTuple):
    """A part of a bundle that leaves the most loaded coordinate."""

    highest: float
    own: int
    cut: int
    first_leaves: bool


def balance(
    bundles: Sequence[Bundle], coordinates: int, sizes: SharedSizes, capacity: int
) -> list[list[Bundle]]:
    """The bundles of each coordinate; ties by row and by coordinate.

    Args:
        bundles: of the mini-batch.
        coordinates: how many.
        sizes: of samples.
        capacity: the most tokens of a piece.
    """
    spread = _Spread(coordinates, sizes, capacity)
    first = [
        min(sizes.rows[place] for own in bundle.pieces for place in own)
        for bundle in bundles
    ]
    cost = [spread.cost(bundle) for bundle in bundles]
    for index in sorted(range(len(bundles)), key=lambda i: (-cost[i], first[i])):
        spread.put(spread.loads.index(min(spread.loads)), bundles[index])
    # At most a move for each sample, so that it ends in any case.
    for _ in sizes.rows:
        if not spread.improve():
            break
    return spread.bundles


class _Spread:
    """Bundles by coordinate, with their costs.

    Args:
        coordinates: how many.
        sizes: of samples.
        capacity: the most tokens of a piece.
    """

    def __init__(self, coordinates: int, sizes: SharedSizes, capacity: int) -> None:
        self.bundles: list[list[Bundle]] = [[] for _ in range(coordinates)]
        self.loads = [0.0] * coordinates
        self._costs: list[list[float]] = [[] for _ in range(coordinates)]
        self._sizes = sizes
        self._capacity = capacity

    def cost(self, bundle: Bundle) -> float:
        """What a pass over a bundle costs."""
        return sum(self._sizes.cost(piece) for piece in bundle.pieces)

    def put(self, coordinate: int, bundle: Bundle) -> None:
        """Adds a bundle."""
        cost = self.cost(bundle)
        self.bundles[coordinate].append(bundle)
        self._costs[coordinate].append(cost)
        self.loads[coordinate] += cost

    def improve(self) -> bool:
        """Makes the move that lowers the highest load most; False where none does, or none has to.

        Whole bundles are moved if that helps at all, because nothing is computed twice for it.
        """
        mean = sum(self.loads) / len(self.loads)
        highest = max(self.loads)
        if highest <= _CLOSE * mean:
            return False
        enough = highest - _LEAST_GAIN * mean
        heavy = self.loads.index(highest)
        exchange = self._best_exchange(heavy)
        if exchange is not None and exchange.highest < enough:
            self._exchange(heavy, exchange)
            return True
        division = self._best_division(heavy)
        if division is not None and division.highest < enough:
            self._divide(heavy, division)
            return True
        return False

    def _best_exchange(self, heavy: int) -> _Swap | None:
        own = np.array(self._costs[heavy])
        best = None
        for other, load in enumerate(self.loads):
            if other == heavy:
                continue
            moved = own[:, None] - np.array([0.0, *self._costs[other]])
            after = np.maximum(self.loads[heavy] - moved, load + moved)
            index, theirs = divmod(int(np.argmin(after)), after.shape[1])
            highest = float(after[index, theirs])
            if best is None or highest < best.highest:
                best = _Swap(highest, index, other, theirs - 1 if theirs else None)
        return best

    def _exchange(self, heavy: int, move: _Swap) -> None:
        theirs = None if move.theirs is None else self._take(move.other, move.theirs)
        self.put(move.other, self._take(heavy, move.own))
        if theirs is not None:
            self.put(heavy, theirs)

    def _take(self, coordinate: int, index: int) -> Bundle:
        self.loads[coordinate] -= self._costs[coordinate].pop(index)
        return self.bundles[coordinate].pop(index)

    def _best_division(self, heavy: int) -> _Division | None:
        lightest = min(self.loads)
        best = None
        for own, (bundle, cost) in enumerate(
            zip(self.bundles[heavy], self._costs[heavy], strict=True)
        ):
            parts = self._sizes.cost_of_parts(bundle.pieces[0])
            for cut in bundle.cuts():
                for first_leaves in (True, False):
                    leaving, staying = parts[cut - 1][:: 1 if first_leaves else -1]
                    highest = max(self.loads[heavy] - cost + staying, lightest + leaving)
                    if best is None or highest < best.highest:
                        best = _Division(highest, own, cut, first_leaves)
        return best

    def _divide(self, heavy: int, move: _Division) -> None:
        """Moves a part to the least loaded coordinate, to samples of its group if they are there
        and have room."""
        lightest = self.loads.index(min(self.loads))
        parts = self._take(heavy, move.own).divided(move.cut)
        leaving, staying = parts if move.first_leaves else parts[::-1]
        self.put(heavy, staying)
        for index, home in enumerate(self.bundles[lightest]):
            if home.group == leaving.group and len(home.pieces) == 1:
                joined = Bundle.of(home.group, (*home.units, *leaving.units))
                if self._sizes.tokens(joined.pieces[0]) <= self._capacity:
                    self._take(lightest, index)
                    leaving = joined
                    break
        self.put(lightest, leaving)
