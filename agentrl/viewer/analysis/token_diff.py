"""Token diff: aligns two sequences of token ids that should say the same.

At a difference it looks for the shortest stretches of both that have one text and are followed by
equal ids, so that each difference is as small as it can be.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

WINDOW = 64
"""Tokens of a difference that is looked for by its text."""
_AFTER = 4
"""Equal ids that must follow it."""
_LINE = 256
"""Ids that a long difference is split by."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class DifferingSpan:
    """A difference: ``one[start:end]`` against ``other[other_start:other_end]``."""

    start: int
    end: int
    other_start: int
    other_end: int


def differing(one: Sequence[int], other: Sequence[int], decode: Decode) -> list[DifferingSpan]:
    """The differences of two sequences, in order."""
    spans: list[DifferingSpan] = []
    i = j = 0
    while i < len(one) or j < len(other):
        if i < len(one) and j < len(other) and one[i] == other[j]:
            i += 1
            j += 1
            continue
        found = _nearest(one, i, other, j, decode)
        if found is None:
            return spans + _matched(one, i, other, j)
        spans.append(DifferingSpan(i, i + found[0], j, j + found[1]))
        i += found[0]
        j += found[1]
    return spans


def _nearest(
    one: Sequence[int], i: int, other: Sequence[int], j: int, decode: Decode
) -> tuple[int, int] | None:
    """How many ids of both have one text; None where no such lengths are near."""
    for alike in (str, plain):
        lengths: dict[str, list[int]] = {}
        for length in range(min(WINDOW, len(other) - j) + 1):
            lengths.setdefault(alike(decode(other[j : j + length])), []).append(length)
        own = range(min(WINDOW, len(one) - i) + 1)
        pairs = (
            (length + theirs, length, theirs)
            for length in own
            for theirs in lengths.get(alike(decode(one[i : i + length])), ())
            if length + theirs and _agree(one, i + length, other, j + theirs)
        )
        if best := min(pairs, default=None):
            return best[1], best[2]
    return None


def plain(text: str) -> str:
    """``text`` without what a normalizer may change: forms of characters, and white space."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _agree(one: Sequence[int], i: int, other: Sequence[int], j: int) -> bool:
    return list(islice(one, i, i + _AFTER)) == list(islice(other, j, j + _AFTER))


def _matched(one: Sequence[int], i: int, other: Sequence[int], j: int) -> list[DifferingSpan]:
    """The differences from a place on, where texts differ."""
    matcher = SequenceMatcher(None, one[i:], other[j:], autojunk=len(one) - i > _LINE * WINDOW)
    return [
        DifferingSpan(i + start, i + end, j + other_start, j + other_end)
        for tag, start, end, other_start, other_end in matcher.get_opcodes()
        if tag != "equal"
    ]
