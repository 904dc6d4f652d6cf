"""Peer: bm25s itself over the same corpus, with the same words, in a process of its own.

``python -m benchmarks.passages.peer CORPUS QUERIES HITS`` prints, for each query, bm25s's own best
scores, and the scores that it gives to the documents that were found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bm25s import BM25

from agentrl.tools.search.disk_index import read_corpus
from agentrl.tools.search.retriever import K1, METHOD, B, words
from benchmarks.passages.reader import TOP_K

__all__ = ["is_equal"]


def is_equal(
    found: Sequence[tuple[str, float]], own: Sequence[float], best: Sequence[float]
) -> bool:
    """Whether what was found are bm25s's best documents, with its scores to the last bit.

    Of documents of equal score any may stand at the end: where different documents have exactly the
    best scores, each that is better than the last is among them.

    Args:
        found: ids and scores, best first.
        own: the scores that bm25s gives to these documents.
        best: bm25s's own best scores, best first, those of 0 left out.
    """
    different = len({document for document, _ in found}) == len(found)
    return different and [score for _, score in found] == list(own) == list(best)


def main(arguments: Sequence[str]) -> int:
    """Indexes the corpus and judges what was found."""
    corpus, asked, found = map(Path, arguments)
    queries = json.loads(asked.read_text(encoding="utf-8"))
    hits = json.loads(found.read_text(encoding="utf-8"))
    ids: dict[str, int] = {}
    texts = []
    for document in read_corpus(corpus):
        ids[document.id] = len(ids)
        texts.append(words(f"{document.title} {document.text}"))
    index = BM25(method=METHOD, k1=K1, b=B, backend="numpy")
    index.index(texts, show_progress=False)
    del texts
    equal = []
    for query, own in zip(queries, hits, strict=True):
        known = index.get_tokens_ids(words(query))
        if not known:
            equal.append(own == [])
            continue
        _, best = index.retrieve(
            [words(query)], k=min(TOP_K, len(ids)), show_progress=False
        )
        scores = index.get_scores_from_ids(known)
        equal.append(
            is_equal(
                own,
                [float(scores[ids[document]]) for document, _ in own],
                [float(score) for score in best[0] if score > 0],
            )
        )
    print(json.dumps(equal))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
