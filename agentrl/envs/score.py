"""Score: the value of a reward part, and why it has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function may give in place of a number.

    Args:
        value: the number.
        why: what led to it, for people to read, as JSON: a judge's prompt and answer, the output of
            tests. It is stored as ``Trajectory.reasons[part]``; None stores nothing.
    """

    value: float
    why: Any = None
