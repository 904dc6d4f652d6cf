"""N-grams: counted as by hand, spelled as they were, and joined to the phrases they are part of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.viewer.analysis.ngrams import (
    SEPARATOR,
    Candidate,
    Corpus,
    Vocabulary,
    count_ngrams,
    join_overlapping,
    spell,
)

Sequence = list[int]
DOCUMENTS = st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=8)


def ngrams_of(document: Sequence, length: int) -> set[tuple[int, ...]]:
    runs = (tuple(document[i : i + length]) for i in range(len(document) - length + 1))
    return {run for run in runs if SEPARATOR not in run}


@given(DOCUMENTS, DOCUMENTS, st.integers(1, 3))
def test_counts_are_those_of_a_plain_count(
    documents: list[Sequence], known: list[Sequence], min_support: int
) -> None:
    known = (known + [[]] * len(documents))[: len(documents)]
    corpus = Corpus.of(documents)

    for counts in count_ngrams(corpus, Corpus.of(known), 4, min_support):
        found = [
            ngrams_of(document, counts.length) - ngrams_of(prior, counts.length)
            for document, prior in zip(documents, known, strict=True)
        ]
        plain = {
            ngram: [place for place, own in enumerate(found) if ngram in own]
            for ngram in set().union(*found)
        }
        expected = {ngram: own for ngram, own in plain.items() if len(own) >= min_support}
        spelled = spell(corpus, counts, np.arange(counts.hashes.size))
        assert {
            spelled[index]: counts.of(index).tolist() for index in range(counts.hashes.size)
        } == expected


def test_flags_are_counted_by_document() -> None:
    corpus = Corpus.of([[1, 2], [1], [2, 1]])
    (counts,) = count_ngrams(corpus, Corpus.of([[], [], []]), 1, 1)

    flagged = counts.with_flag(np.array([True, True, False]))

    spelled = spell(corpus, counts, np.arange(2))
    assert {spelled[index]: int(flagged[index]) for index in range(2)} == {(1,): 2, (2,): 1}


def test_a_number_is_any_number() -> None:
    words = Vocabulary(fold_numbers=True)

    assert [words[word] for word in ("a", "12", "3.5", "b", "a")] == [2, 1, 1, 3, 2]


def test_a_vocabulary_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.viewer.analysis.ngrams.MAX_VOCABULARY", 2)
    words = Vocabulary()

    assert [words[word] for word in ("a", "b", "c", "a")] == [2, 3, SEPARATOR, 2]


def joined(
    corpus: Corpus, *candidates: tuple[tuple[int, ...], list[int]]
) -> list[Sequence]:
    made = [Candidate(words, np.array(documents)) for words, documents in candidates]
    return [list(one.words) for one in join_overlapping(made, corpus, 10)]


def test_parts_of_a_phrase_become_the_phrase() -> None:
    corpus = Corpus.of([[1, 2, 3, 4, 5]] * 4)

    assert joined(
        corpus, ((2, 3), [0, 1, 2, 3]), ((3, 4, 5), [0, 1, 2, 3]), ((1, 2), [0, 1, 2, 3])
    ) == [[1, 2, 3, 4, 5]]


def test_phrases_of_other_documents_stay_apart() -> None:
    corpus = Corpus.of([[1, 2, 9], [1, 2, 9], [2, 3], [2, 3]])

    assert joined(corpus, ((1, 2), [0, 1]), ((2, 3), [2, 3])) == [[1, 2], [2, 3]]


def test_phrases_that_never_stand_together_stay_apart() -> None:
    corpus = Corpus.of([[1, 2, 0, 2, 3]] * 4)

    assert joined(corpus, ((1, 2), [0, 1, 2, 3]), ((2, 3), [0, 1, 2, 3])) == [
        [1, 2],
        [2, 3],
    ]
