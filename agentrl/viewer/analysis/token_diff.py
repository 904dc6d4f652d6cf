"""Token diff: aligns two sequences of token ids that should say the same.

At a difference it looks for the shortest stretches of both that have one text and are followed by
equal ids, so that each difference is as small as it can be.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

WINDOW = 64
"""Tokens of a difference that is looked for by its text."""
_AFTER = 4
"""Equal ids that must follow it."""
_WINDOWS = (4, 16, WINDOW)
"""Of them, what is looked at first: most differences are short."""
_GRAMS = 8
"""Ids of a stretch by which long differences are aligned first; then 4, 2 and 1 of them."""
_CELLS = 1 << 18
"""Pairs of ids that are compared as a whole: 512 and 512. The time grows with their number."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class DifferingSpan:
    """A difference: ``one[start:end]`` against ``other[other_start:other_end]``."""

    start: int
    end: int
    other_start: int
    other_end: int


def differing(
    one: Sequence[int], other: Sequence[int], decode: Decode
) -> list[DifferingSpan]:
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
    own, theirs = _Beginnings(one, i, decode), _Beginnings(other, j, decode)
    for alike in (str, plain):
        for longest in _WINDOWS:
            lengths: dict[str, list[int]] = {}
            for length, text in enumerate(theirs.texts(longest)):
                lengths.setdefault(alike(text), []).append(length)
            pairs = (
                (length + near, length, near)
                for length, text in enumerate(own.texts(longest))
                for near in lengths.get(alike(text), ())
                if length + near and _agree(one, i + length, other, j + near)
            )
            best = min(pairs, default=None)
            # A pair with a longer stretch is longer than this one.
            if best and (best[0] <= longest or longest == WINDOW):
                return best[1], best[2]
    return None


class _Beginnings:
    """The texts of 0, 1, 2, ... ids from a place on, each decoded once."""

    def __init__(self, ids: Sequence[int], start: int, decode: Decode) -> None:
        self._ids = ids[start : start + WINDOW]
        self._decode = decode
        self._texts: list[str] = []

    def texts(self, longest: int) -> list[str]:
        for length in range(len(self._texts), min(longest, len(self._ids)) + 1):
            self._texts.append(self._decode(self._ids[:length]))
        return self._texts[: longest + 1]


def plain(text: str) -> str:
    """``text`` without what a normalizer may change: forms of characters, and white space."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _agree(one: Sequence[int], i: int, other: Sequence[int], j: int) -> bool:
    return list(islice(one, i, i + _AFTER)) == list(islice(other, j, j + _AFTER))


def _matched(
    one: Sequence[int], i: int, other: Sequence[int], j: int, grams: int = _GRAMS
) -> list[DifferingSpan]:
    """The differences from a place on, where texts differ: between stretches that both have once,
    as patience diff has it, so that what is compared as a whole stays short."""
    spans: list[DifferingSpan] = []
    for start, end, other_start, other_end in _between(one[i:], other[j:], grams):
        first, theirs = i + start, j + other_start
        own, its = one[first : i + end], other[theirs : j + other_end]
        if len(own) * len(its) <= _CELLS:
            opcodes = SequenceMatcher(None, own, its, autojunk=False).get_opcodes()
            spans += [
                DifferingSpan(first + a, first + b, theirs + c, theirs + d)
                for tag, a, b, c, d in opcodes
                if tag != "equal"
            ]
        elif grams > 1:
            inner = _matched(own, 0, its, 0, grams // 2)
            spans += [
                DifferingSpan(
                    first + span.start,
                    first + span.end,
                    theirs + span.other_start,
                    theirs + span.other_end,
                )
                for span in inner
            ]
        else:
            spans.append(DifferingSpan(first, first + len(own), theirs, theirs + len(its)))
    return spans


def _between(
    one: Sequence[int], other: Sequence[int], grams: int
) -> Iterator[tuple[int, int, int, int]]:
    """The parts of both between stretches of ``grams`` ids that each has once, in an order that
    both have."""
    places = _once(other, grams)
    shared = [
        (at, places[gram]) for gram, at in _once(one, grams).items() if gram in places
    ]
    start = other_start = 0
    for at, other_at in _rising(shared):
        if at < start or other_at < other_start:
            # within the stretch before
            if at - start == other_at - other_start:
                start, other_start = at + grams, other_at + grams
            continue
        if at > start or other_at > other_start:
            yield start, at, other_start, other_at
        start, other_start = at + grams, other_at + grams
    if start < len(one) or other_start < len(other):
        yield start, len(one), other_start, len(other)


def _once(ids: Sequence[int], grams: int) -> dict[tuple[int, ...], int]:
    """Stretches that occur once, with their places in order."""
    places: dict[tuple[int, ...], int] = {}
    twice: set[tuple[int, ...]] = set()
    for place in range(len(ids) - grams + 1):
        gram = tuple(ids[place : place + grams])
        if gram in places:
            twice.add(gram)
        else:
            places[gram] = place
    return {gram: place for gram, place in places.items() if gram not in twice}


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of pairs, whose first numbers rise, in which the second ones rise too."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, other) in enumerate(pairs):
        place = bisect_left(ends, other)
        before.append(last[place - 1] if place else -1)
        ends[place : place + 1], last[place : place + 1] = [other], [index]
    found: list[tuple[int, int]] = []
    index = last[-1] if last else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]
