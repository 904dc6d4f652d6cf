"""Overlap: n-grams that are parts of one longer phrase become that phrase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.viewer.analysis.ngrams import Corpus

_ALIKE = 0.8
"""The share of trajectories, of those that have either, which have both parts of one phrase."""
_MOST_WORDS = 24

Words = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Candidate:
    """An n-gram and its test.

    Args:
        words: numbers of a ``Vocabulary``.
        documents: the trajectories that have it, ascending.
        log_odds, z, p, q: as ``Change``.
    """

    words: Words
    documents: npt.NDArray[np.int64]
    log_odds: float = 0.0
    z: float = 0.0
    p: float = 1.0
    q: float = 1.0


def join_overlapping(
    candidates: Iterable[Candidate], corpus: Corpus, limit: int
) -> list[Candidate]:
    """The candidates without those that another one says.

    Of candidates that the same trajectories have, one that lies within another is left out, and one
    that overlaps another makes it longer, where the whole occurs.

    Args:
        candidates: in order; the first of a phrase gives its numbers.
        corpus: in which they were counted.
        limit: the most.
    """
    kept: list[Candidate] = []
    for one in candidates:
        if not _absorbed(one, kept, corpus):
            if len(kept) == limit:
                break
            kept.append(one)
    # they have grown since they were compared
    whole: list[Candidate] = []
    for one in kept:
        if not _absorbed(one, whole, corpus):
            whole.append(one)
    return whole


def _absorbed(one: Candidate, others: Iterable[Candidate], corpus: Corpus) -> bool:
    """Whether one of the others says it, or was made longer so that it does."""
    for other in others:
        whole = _whole(other.words, one.words)
        if whole is None or not _alike(other.documents, one.documents):
            continue
        if whole == other.words or _occurs(corpus, whole, other.documents):
            other.words = whole
            return True
    return False


def _whole(known: Words, new: Words) -> Words | None:
    """The shortest sequence with both, where one holds the other or they share two words, or all
    but one word of the shorter."""
    if _holds(known, new):
        return known
    if _holds(new, known):
        return new
    shorter = min(len(known), len(new))
    for shared in range(shorter - 1, min(2, shorter - 1) - 1, -1):
        if shared and known[-shared:] == new[:shared]:
            return _bounded((*known, *new[shared:]))
        if shared and new[-shared:] == known[:shared]:
            return _bounded((*new, *known[shared:]))
    return None


def _bounded(words: Words) -> Words | None:
    return words if len(words) <= _MOST_WORDS else None


def _holds(long: Words, short: Words) -> bool:
    return any(
        long[start : start + len(short)] == short for start in range(len(long) - len(short) + 1)
    )


def _alike(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> bool:
    smaller, larger = sorted((one.size, other.size))
    if smaller < _ALIKE * larger:
        return False
    both = np.intersect1d(one, other, assume_unique=True).size
    return both >= _ALIKE * (smaller + larger - both)


def _occurs(corpus: Corpus, words: Words, documents: npt.NDArray[np.int64]) -> bool:
    """Whether nearly all of some of the documents have the sequence."""
    looked = documents[:50].tolist()
    return sum(corpus.occurs(document, words) for document in looked) >= _ALIKE * len(looked)
