"""Search tool: BM25 over documents in memory, on the bm25s library."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.errors import ConfigError, DataError, ToolError
from agentrl.tools.base import Tool
from agentrl.tools.context import ToolContext
from agentrl.tools.signature import closed_schema
from agentrl.tools.threads import TOOL_THREADS
from agentrl.types import ToolSpec
from agentrl.types.user_code.function import load_named

_WORD = re.compile(r"\w+")


class Document(NamedTuple):
    """What can be found: an id, a title, a text. A plain tuple of three strings does as well."""

    id: str
    title: str
    text: str


class Hit(NamedTuple):
    """A document found, and its BM25 score, which is above 0."""

    document: Document
    score: float


class SearchIndex:
    """BM25 (Lucene's variant, k1 = 1.5, b = 0.75) over title and text, in words without case.

    It is built at the first search, once, and then shared by every thread and episode of the
    process: keep one at a module's top level. Equal queries give equal answers; documents of equal
    score keep the order given.

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

    def search(self, query: str, top_k: int) -> list[Hit]:
        """The ``top_k`` best documents that share a word with ``query``, best first."""
        retriever, vocabulary = self._retriever()
        words = [vocabulary[word] for word in _words(query) if word in vocabulary]
        if not words:
            return []
        scores = retriever.get_scores_from_ids(words)
        hits: list[Hit] = []
        # bm25s's own selection takes milliseconds among many equal scores, and leaves their order
        # open; argmax takes microseconds and gives the first of them.
        while len(hits) < top_k and scores[best := int(scores.argmax())] > 0.0:
            hits.append(Hit(self._documents[best], float(scores[best])))
            scores[best] = 0.0
        return hits

    def __reduce__(self) -> tuple[Any, ...]:
        return SearchIndex, (self._documents,)

    def _retriever(self) -> tuple[Any, dict[str, int]]:
        with self._lock:
            if self._built is None:
                from bm25s import BM25  # here, because it loads scipy, which no other tool needs

                vocabulary: dict[str, int] = {}
                ids = [
                    [
                        vocabulary.setdefault(word, len(vocabulary))
                        for word in _words(f"{document.title} {document.text}")
                    ]
                    for document in self._documents
                ]
                if not vocabulary:
                    raise DataError(
                        "a search index needs at least one word in its documents, got none"
                    )
                retriever = BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
                retriever.index((ids, vocabulary), show_progress=False)
                self._built = retriever, vocabulary
            return self._built


class SearchTool(Tool):
    """Finds documents by words; gives one line a document, ``title: text``, best first.

    Args:
        index: what is searched.
        top_k: documents given.
        name: the tool's name.
        description: what the model is told.
        max_output_chars: characters of output kept; None takes the executor's.

    Raises:
        ToolError: ``top_k`` below 1.
    """

    keeps_deadline = True

    def __init__(
        self,
        index: SearchIndex,
        *,
        top_k: int = 3,
        name: str = "search",
        description: str = "Search the documents for words.",
        max_output_chars: int | None = None,
    ) -> None:
        if top_k < 1:
            raise ToolError(f"tool {name!r}: top_k must be at least 1, got {top_k}")
        query = {"type": "string", "description": "Words to look for."}
        self.spec = ToolSpec(name, description, closed_schema({"query": query}, ["query"]))
        self.max_output_chars = max_output_chars
        self._index = index
        self._top_k = top_k

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        """Search for ``arguments["query"]``."""
        hits = await TOOL_THREADS.run(
            lambda: self._index.search(arguments["query"], self._top_k),
            deadline_s=context.deadline_s,
        )
        lines = (f"{title}: {text}" if title else text for (_, title, text), _ in hits)
        return "\n".join(lines) or "No document matches."


@functools.lru_cache(maxsize=16)
def load_index(documents: str, base_dir: str) -> SearchIndex:
    """The index of documents that a configuration names, built once a process.

    Args:
        documents: a ``.jsonl`` file of ``{"text", "title"?, "id"?}``, or ``file.py:name`` or
            ``module:name`` of a SearchIndex or of ``(id, title, text)`` documents.
        base_dir: where relative paths start.

    Raises:
        DataError: the file cannot be read, or a line is no document; it is named.
        ConfigError: the reference names nothing.
    """
    if documents.endswith(".jsonl"):
        return SearchIndex(list(_documents(Path(base_dir, Path(documents).expanduser()))))
    found = load_named(documents, base_dir, _broken)
    return found if isinstance(found, SearchIndex) else SearchIndex(found)


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"documents{rule}")


def _documents(path: Path) -> Iterator[Document]:
    if not path.is_file():
        raise DataError(
            f"documents={str(path)!r} does not exist; name a .jsonl file, from the configuration's "
            "folder on"
        )
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{number} is not JSON: {error}") from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise DataError(
                    f"{path}:{number} must be an object with a 'text', and maybe a 'title' and an "
                    "'id'"
                )
            yield Document(str(row.get("id", number)), str(row.get("title", "")), row["text"])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
