"""Memory index: BM25 over documents in memory, on the bm25s library."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.tools.search.retriever import K1, METHOD, B, Document, Hit, best, words


class SearchIndex:
    """BM25 (Lucene's variant, k1 = 1.5, b = 0.75) over title and text, in words without case.

    It is built at the first search, once, and then shared by every thread and episode of the
    process: keep one at a module's top level. Equal queries give equal answers; documents of equal
    score keep the order given. A large corpus is better kept on disk: ``DiskIndex``.

    Args:
        documents: ``(id, title, text)`` each, with different ids.

    Raises:
        DataError: no documents, or two of one id.
    """

    def __init__(self, documents: Sequence[tuple[str, str, str]]) -> None:
        self._documents = [Document(*document) for document in documents]
        if not self._documents:
            raise DataError("a search index needs at least one document, got none")
        document_id, count = Counter(document.id for document in self._documents).most_common(1)[0]
        if count > 1:
            raise DataError(f"documents need different ids, got {document_id!r} twice")
        # Guards _built: the first of several tool threads builds the index, the others wait.
        self._lock = threading.Lock()
        self._built: tuple[Any, dict[str, int]] | None = None

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def documents(self) -> Sequence[Document]:
        """What can be found, in the order given."""
        return self._documents

    def search(self, query: str, top_k: int) -> list[Hit]:
        """The ``top_k`` best documents that share a word with ``query``, best first."""
        retriever, vocabulary = self._retriever()
        known = [vocabulary[word] for word in words(query) if word in vocabulary]
        if not known:
            return []
        scores = retriever.get_scores_from_ids(known)
        kept = scores.copy()  # best() changes them
        return [Hit(self._documents[at], float(kept[at])) for at in best(scores, top_k)]

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See ``Retriever.search_many``."""
        return [self.search(query, top_k) for query in queries]

    def __reduce__(self) -> tuple[Any, ...]:
        return SearchIndex, (self._documents,)

    def _retriever(self) -> tuple[Any, dict[str, int]]:
        with self._lock:
            if self._built is None:
                from bm25s import BM25  # here, because only what searches needs it

                vocabulary: dict[str, int] = {}
                ids = [
                    [
                        vocabulary.setdefault(word, len(vocabulary))
                        for word in words(f"{document.title} {document.text}")
                    ]
                    for document in self._documents
                ]
                if not vocabulary:
                    raise DataError(
                        "a search index needs at least one word in its documents, got none"
                    )
                retriever = BM25(method=METHOD, k1=K1, b=B, backend="numpy", csc_backend="numpy")
                retriever.index((ids, vocabulary), show_progress=False)
                self._built = retriever, vocabulary
            return self._built
