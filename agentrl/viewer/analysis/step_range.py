"""Step range: a range of steps as an address has it, such as ``10..20``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import DataError
from agentrl.store import TrajectorySummary

_RANGE = re.compile(r"(\d{1,18})(?:\.\.(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps ``first`` to ``last``, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, name: str = "steps") -> StepRange:
        """The range of a text.

        Raises:
            DataError: it is none; the message has ``name``.
        """
        match = _RANGE.fullmatch(text.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise DataError(
                f"{name} must be a step or a range of steps such as 10..20, got {text!r}"
            )
        return cls(int(first), int(last))

    def trajectories(self, summaries: Iterable[TrajectorySummary]) -> list[TrajectorySummary]:
        """Those that finished in the range."""
        return [one for one in summaries if self.first <= one.step <= self.last]
