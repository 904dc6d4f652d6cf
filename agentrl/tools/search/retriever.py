"""Retriever: what finds documents for queries, and BM25 over documents in memory."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from agentrl.errors import DataError
from agentrl.types.arrays import F32

_WORD = re.compile(r"\w+")
WORD_RULE = f"{_WORD.pattern} of casefolded text"

METHOD = "lucene"
K1 = 1.5
B = 0.75


class Document(NamedTuple):
    """What can be found: an id, a title, a text. A plain tuple of three strings does as well."""

    id: str
    title: str
    text: str

    @classmethod
    def of(cls, fields: Mapping[str, Any], own_id: object = "") -> Document | None:
        """The document of a row or of an answer: of its ``id``, ``title`` and ``text``, or of
        ``contents``, whose first line is the title. None where it has no text.

        Args:
            fields: of the row.
            own_id: where the row has none.
        """
        title, text = fields.get("title"), fields.get("text")
        contents = fields.get("contents")
        if text is None and isinstance(contents, str):
            first, _, text = contents.partition("\n")
            title = first.strip().strip('"') if title is None else title
        if not isinstance(text, str):
            return None
        named = fields.get("id")
        return cls(
            str(own_id if named is None else named),
            "" if title is None else str(title),
            text,
        )


class Hit(NamedTuple):
    """A document found, and its score: more is better. BM25 gives scores above 0."""

    document: Document
    score: float


@runtime_checkable
class Retriever(Protocol):
    """Finds documents. Calls come from several threads at once."""

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """For each query at most ``top_k`` documents, best first; a batch, because a dense
        retriever embeds one at once.
        """
        ...


class WordIndex(ABC):
    """BM25 over documents, wherever they lie."""

    @abstractmethod
    def _opened(self) -> tuple[Any, Callable[[str], int | None], Callable[[int], Document]]:
        """bm25s's index, and what gives a word's position and the document at one."""

    def search(self, query: str, top_k: int) -> list[Hit]:
        """The ``top_k`` best documents that share a word with ``query``, best first."""
        index, position_of, document_at = self._opened()
        known = [at for word in words(query) if (at := position_of(word)) is not None]
        if not known:
            return []
        scores = index.get_scores_from_ids(known)
        # best() changes them.
        kept = scores.copy()
        return [Hit(document_at(at), float(kept[at])) for at in best(scores, top_k)]

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See ``Retriever.search_many``."""
        return [self.search(query, top_k) for query in queries]


def new_index() -> Any:
    """An empty index of bm25s."""
    # Here, because only what searches needs it.
    from bm25s import BM25

    return BM25(method=METHOD, k1=K1, b=B, backend="numpy", csc_backend="numpy")


def numbered(document: Document, vocabulary: dict[str, int]) -> list[int]:
    """A document's words by their numbers in ``vocabulary``, which takes the new ones."""
    said = words(f"{document.title} {document.text}")
    return [vocabulary.setdefault(word, len(vocabulary)) for word in said]


def words(text: str) -> list[str]:
    """The words by which BM25 compares texts."""
    return _WORD.findall(text.casefold())


def best(scores: F32, top_k: int) -> list[int]:
    """The positions of the ``top_k`` highest scores above 0, best first; of equal ones the first.

    bm25s's own selection takes milliseconds among many equal scores, and leaves their order open;
    argmax takes microseconds.

    Args:
        scores: ``[n]``, which is changed.
        top_k: how many.
    """
    found: list[int] = []
    while len(found) < top_k and scores[position := int(scores.argmax())] > 0.0:
        found.append(position)
        scores[position] = 0.0
    return found


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
        document_id, count = Counter(
            document.id for document in self._documents
        ).most_common(1)[0]
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
