"""Memory index: BM25 over documents in memory, on the bm25s library."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.tools.search.retriever import Document, WordIndex, new_index, numbered


class SearchIndex(WordIndex):
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

    def __reduce__(self) -> tuple[Any, ...]:
        return SearchIndex, (self._documents,)

    def _opened(self) -> tuple[Any, Callable[[str], int | None], Callable[[int], Document]]:
        with self._lock:
            if self._built is None:
                vocabulary: dict[str, int] = {}
                ids = [numbered(document, vocabulary) for document in self._documents]
                if not vocabulary:
                    raise DataError(
                        "a search index needs at least one word in its documents, got none"
                    )
                index = new_index()
                index.index((ids, vocabulary), show_progress=False)
                self._built = index, vocabulary
            index, vocabulary = self._built
            return index, vocabulary.get, self._documents.__getitem__
