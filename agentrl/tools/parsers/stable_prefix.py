"""Stable prefix: the part of a growing completion whose reading is final."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from agentrl.tools.parsers.reading import Marks
from agentrl.types.messages import THOUGHTS_CLOSE, THOUGHTS_OPEN


@runtime_checkable
class MarkedFormat(Protocol):
    """A ``ToolCallParser`` that says how its format is marked, so that a completion can be told
    while it is written; a ``<think>`` at its beginning, which a prompt may have written, opens
    thoughts.
    """

    @property
    def marks(self) -> Marks: ...


def stable_length(text: str, marks: Marks, stop: Iterable[str] = ()) -> int:
    """Characters at the beginning of ``text`` in which no call, mark, or stop string is half
    written.

    Args:
        text: of a completion that goes on; a leading ``<think>`` block may be open.
        marks: of its format.
        stop: strings that would end it.
    """
    stop = tuple(stop)
    size = min((at for at in (text.find(string) for string in stop) if at >= 0), default=len(text))
    position = 0
    if text.lstrip().startswith(THOUGHTS_OPEN):
        end = text.find(THOUGHTS_CLOSE)
        if end < 0:
            return min(size, len(text) - _half_written(text, (THOUGHTS_CLOSE, *stop)))
        position = end + len(THOUGHTS_CLOSE)
    while (opening := _first(text, marks.opens, position)) is not None:
        closing = _first(text, marks.closes, opening[1])
        if closing is None:
            return min(size, opening[0])
        position = closing[1]
    every = (THOUGHTS_OPEN, THOUGHTS_CLOSE, *marks.opens, *marks.closes, *marks.others, *stop)
    return min(size, len(text) - _half_written(text, every))


def _first(text: str, texts: Iterable[str], position: int) -> tuple[int, int] | None:
    """Begin and end of the leftmost of some texts."""
    found = ((at, at + len(one)) for one in texts if (at := text.find(one, position)) >= 0)
    return min(found, default=None)


def _half_written(text: str, texts: Iterable[str]) -> int:
    """Length of the longest end of ``text`` that begins one of ``texts`` and is not all of it."""
    return max(
        (size for one in texts for size in range(1, len(one)) if text.endswith(one[:size])),
        default=0,
    )
