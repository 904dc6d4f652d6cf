"""N-grams: counts sequences of words in documents, and joins those of one longer phrase.

Words are numbers, and a sequence of them is one 48-bit hash, so that a count is a sort of integers:
one trajectory's text is read once, and memory is bounded by ``MAX_WORDS``.

Axes: W words end to end, D documents, K distinct n-grams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.types.arrays import I32, I64, U64, Bools

MAX_WORDS = 3_000_000
"""Words of a corpus; 24 bytes each at the peak of a count."""
MAX_DOCUMENTS = 1 << 16
MAX_VOCABULARY = 1 << 19
SEPARATOR = 0
"""The word between sequences, which no n-gram contains."""


_DOCUMENT_BITS = np.uint64(16)
_DOCUMENT_MASK = np.uint64(MAX_DOCUMENTS - 1)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)


class Vocabulary(dict[str, int]):
    """Numbers words from 2 as they come.

    A word beyond ``MAX_VOCABULARY`` is the separator: it is in no n-gram.

    Args:
        fold_numbers: whether every word that begins with a digit is one word, ``#``, of number 1.
    """

    def __init__(self, *, fold_numbers: bool = False) -> None:
        super().__init__()
        self._fold_numbers = fold_numbers
        self.words = ["", "#"]

    def __missing__(self, word: str) -> int:
        if len(self) >= MAX_VOCABULARY:
            return SEPARATOR
        if self._fold_numbers and word[0].isdecimal():
            self[word] = 1
            return 1
        self[word] = len(self.words)
        self.words.append(word)
        return self[word]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The words of documents end to end.

    Args:
        words: ``[W]`` numbers of a ``Vocabulary``, with ``SEPARATOR`` after each sequence.
        documents: ``[W]`` the document of each word, in order, below ``MAX_DOCUMENTS``.
    """

    words: I32
    documents: I32

    @classmethod
    def of(cls, documents: Sequence[npt.ArrayLike]) -> Corpus:
        """The documents, each with a separator after it."""
        own = [np.asarray(words, dtype=np.int32) for words in documents]
        sizes = np.array([words.size + 1 for words in own], dtype=np.int64)
        whole = np.zeros(int(sizes.sum()), dtype=np.int32)
        for words, end in zip(own, np.cumsum(sizes).tolist(), strict=True):
            whole[end - 1 - words.size : end - 1] = words
        return cls(whole, np.repeat(np.arange(len(own), dtype=np.int32), sizes))

    def occurs(self, document: int, ids: Sequence[int]) -> bool:
        """Whether a document has this sequence."""
        start, end = np.searchsorted(self.documents, (document, document + 1))
        text = self.words[start:end].tobytes()
        sought = np.asarray(ids, dtype=np.int32).tobytes()
        place = text.find(sought)
        while place >= 0 and place % 4:
            place = text.find(sought, place + 1)
        return place >= 0


@dataclass(frozen=True, slots=True, eq=False)
class NgramCounts:
    """In which documents each n-gram occurs.

    Args:
        length: n.
        hashes: ``[K]`` of the n-grams, ascending.
        starts: ``[K + 1]`` into ``documents``.
        documents: the documents of each, end to end, ascending.
    """

    length: int
    hashes: U64
    starts: I64
    documents: I64

    def of(self, index: int) -> I64:
        """The documents of one."""
        return self.documents[self.starts[index] : self.starts[index + 1]]

    def with_flag(self, flags: Bools) -> I64:
        """``[K]`` how many documents of each have the flag ``[D]``."""
        if not self.hashes.size:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(flags[self.documents].astype(np.int64), self.starts[:-1])


def count_ngrams(
    corpus: Corpus, known: Corpus, most: int, min_support: int
) -> Iterator[NgramCounts]:
    """The n-grams of length 1 to ``most`` in at least ``min_support`` documents.

    Args:
        corpus: what is counted.
        known: what each document's reader knew before, such as its prompt; an n-gram that occurs
            there does not count for that document.
        most: the longest.
        min_support: the fewest documents of an n-gram.
    """
    pairs = zip(_keys(corpus, most), _keys(known, most), strict=True)
    for length, (keys, known_keys) in enumerate(pairs, start=1):
        own = _distinct(keys)
        if known_keys.size:
            own = own[~_within(_distinct(known_keys), own)]
        yield _counted(length, own, min_support)


def spell(corpus: Corpus, counts: NgramCounts, indices: I64) -> dict[int, tuple[int, ...]]:
    """The words of n-grams.

    Args:
        corpus: in which they were counted.
        counts: of one length.
        indices: of the n-grams in ``counts``.
    """
    if not indices.size:
        return {}
    sought = counts.hashes[indices]
    for whole in _hashes(corpus.words, counts.length):
        hashes = whole >> _DOCUMENT_BITS
    table = np.sort(sought)
    near = table[np.minimum(np.searchsorted(table, hashes), table.size - 1)]
    places = np.flatnonzero(near == hashes)
    # two sequences of one hash are as likely as a fault of the memory; a separator is in none
    first = dict(zip(hashes[places[::-1]].tolist(), places[::-1].tolist(), strict=True))
    return {
        index: tuple(corpus.words[first[key] : first[key] + counts.length].tolist())
        for index, key in zip(indices.tolist(), sought.tolist(), strict=True)
    }


def _distinct(keys: U64) -> U64:
    """Each key once, ascending; ``np.unique`` goes by hashes, which took ten times as long."""
    ordered = np.sort(keys)
    first = np.ones(ordered.size, dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _within(few: U64, many: U64) -> Bools:
    """Whether each of ``many`` is one of ``few``; both distinct and ascending."""
    found = np.zeros(many.size, dtype=bool)
    places = np.searchsorted(many, few)
    inside = places < many.size
    places = places[inside]
    found[places[many[places] == few[inside]]] = True
    return found


def _counted(length: int, keys: U64, min_support: int) -> NgramCounts:
    # The keys ascend by hash, then by document, so that the documents of an n-gram lie together.
    hashes = keys >> _DOCUMENT_BITS
    starts = np.flatnonzero(
        np.concatenate([[True], hashes[1:] != hashes[:-1]])[: keys.size]
    )
    sizes = np.diff(np.append(starts, keys.size))
    kept = sizes >= min_support
    chosen = keys[np.repeat(kept, sizes)]
    ends = np.cumsum(sizes[kept])
    return NgramCounts(
        length,
        hashes[starts[kept]],
        np.concatenate([[0], ends]).astype(np.int64),
        (chosen & _DOCUMENT_MASK).astype(np.int64),
    )


def _keys(corpus: Corpus, most: int) -> Iterator[U64]:
    """For each length: hash and document of every n-gram, in one number."""
    whole = corpus.words != SEPARATOR
    inside = whole
    for length, hashes in enumerate(_hashes(corpus.words, most), start=1):
        if length > 1:
            inside = inside[:-1] & whole[length - 1 :]
        documents = corpus.documents[: hashes.size].astype(np.uint64)
        yield ((hashes & ~_DOCUMENT_MASK) | documents)[inside]


def _hashes(words: I32, most: int) -> Iterator[U64]:
    """For each length: the hash of the n-gram that begins at each word."""
    own = words.astype(np.uint64) * _MIX
    own ^= own >> np.uint64(29)
    own *= _FACTOR
    hashes = own
    for length in range(1, most + 1):
        if length > 1:
            hashes = (hashes[:-1] ^ (hashes[:-1] >> np.uint64(31))) * _FACTOR + own[
                length - 1 :
            ]
        yield hashes


_ALIKE = 0.8
"""The share of trajectories, of those that have either, which have both parts of one phrase."""
_MOST_WORDS = 24

Words = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Candidate:
    """An n-gram and its test.

    Args:
        words: numbers of a ``Vocabulary``; those of a longer phrase where others were joined to it.
        documents: the trajectories that have it, as it was counted, ascending.
        log_odds, z, p, q: as ``Change``.
    """

    words: Words
    documents: I64
    log_odds: float = 0.0
    z: float = 0.0
    p: float = 1.0
    q: float = 1.0
    counted: Words = ()

    def __post_init__(self) -> None:
        self.counted = self.words


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
        long[start : start + len(short)] == short
        for start in range(len(long) - len(short) + 1)
    )


def _alike(one: I64, other: I64) -> bool:
    smaller, larger = sorted((one.size, other.size))
    if smaller < _ALIKE * larger:
        return False
    both = np.intersect1d(one, other, assume_unique=True).size
    return both >= _ALIKE * (smaller + larger - both)


def _occurs(corpus: Corpus, words: Words, documents: I64) -> bool:
    """Whether nearly all of some of the documents have the sequence."""
    looked = documents[:50].tolist()
    return sum(corpus.occurs(document, words) for document in looked) >= _ALIKE * len(
        looked
    )
