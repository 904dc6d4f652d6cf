"""Score: the value of a reward part, and why it has it; and what a reward function scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

Scope: TypeAlias = Literal["episode", "turns", "group"]
"""What a reward function scores at a call: an episode as a whole, or turn by turn, or all
episodes of a group.
"""

_SCOPE = "reward_scope"
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function may give in place of a number.

    Args:
        value: the number.
        why: what led to it, for people to read, as JSON: a judge's prompt and answer, the output of
            tests. It is stored as ``Trajectory.reasons[part]``; None stores nothing.
        turns: the value of each turn, whose sum ``value`` is; empty where turns were not scored.
    """

    value: float
    why: Any = None
    turns: Sequence[float] = ()


def turn_rewards(function: _F) -> _F:
    """Marks a reward function that gives one number for each turn of the episode.

    The part's value is their sum; each turn's own, times the part's weight, is stored with the turn
    (``Turn.rewards``), where algorithms with credit by turn find it.
    """
    setattr(function, _SCOPE, "turns")
    return function


def group_rewards(function: _F) -> _F:
    """Marks a reward function of all finished episodes of a group: it is given a list of
    ``EpisodeView`` and gives a list of numbers or scores, one for each, in order.

    It is called when the last episode of the group has ended; ``EpisodeView.env`` is None.
    """
    setattr(function, _SCOPE, "group")
    return function


def scope_of(function: Callable[..., Any]) -> Scope:
    """What a reward function scores."""
    scope: Scope = getattr(function, _SCOPE, "episode")
    return scope
