"""Mixture: decides from which source each draw comes, by the sources' weights.

- The order is fixed by the weights alone: a draw's source follows from its number.
- After p draws a source of share w has given less than one draw more or fewer than w · p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Share:
    """A source of a mixture.

    Args:
        num_tasks: that it holds.
        weight: its share of the draws, over the sum of all weights.
    """

    num_tasks: int
    weight: float


class Mixture:
    """The sources of consecutive draws, by Tijdeman's rule for the chairman assignment problem
    (Discrete Mathematics 32, 1980): of the sources that are due, the one whose next draw has the
    earliest deadline.

    Args:
        weights: one a source, each above 0.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        # The text of a weight is what was written: 0.1 is a tenth, and not the nearest float.
        exact = [Fraction(str(weight)) for weight in weights]
        whole = math.lcm(*(weight.denominator for weight in exact))
        # integers, so that no rounding decides
        self._weights = [int(weight * whole) for weight in exact]
        self._total = sum(self._weights)
        self._drawn = 0
        self._counts = [0] * len(self._weights)

    def next(self) -> tuple[int, int]:
        """The next draw's source, and how many draws that source has given before."""
        self._drawn += 1
        due = (
            index
            for index, weight in enumerate(self._weights)
            if self._counts[index] * self._total < weight * self._drawn
        )
        source = min(due, key=self._deadline)
        self._counts[source] += 1
        return source, self._counts[source] - 1

    def _deadline(self, source: int) -> Fraction:
        return Fraction((self._counts[source] + 1) * self._total, self._weights[source])
