"""Search tool: a retriever as the model calls it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, ToolError
from agentrl.tools.base import Tool
from agentrl.tools.context import ToolContext
from agentrl.tools.search.client import SearchClient
from agentrl.tools.search.disk_index import DiskIndex
from agentrl.tools.search.memory_index import SearchIndex
from agentrl.tools.search.retriever import Retriever
from agentrl.tools.signature import text_spec
from agentrl.tools.threads import TOOL_THREADS
from agentrl.types.user_code.load import load_named

_FILES = (".jsonl", ".parquet")


class SearchTool(Tool):
    """Finds documents; gives one line a document, ``title: text``, best first.

    Args:
        index: what is searched: an index, a ``SearchClient``, or a retriever of your own.
        top_k: documents given.
        name: the tool's name.
        description: what the model is told.
        max_output_chars: characters of output kept; None takes the executor's.

    Raises:
        ToolError: ``top_k`` below 1.
    """

    keeps_deadline = True
    idempotent = True

    def __init__(
        self,
        index: Retriever,
        *,
        top_k: int = 3,
        name: str = "search",
        description: str = "Search the documents for words.",
        max_output_chars: int | None = None,
    ) -> None:
        if top_k < 1:
            raise ToolError(f"tool {name!r}: top_k must be at least 1, got {top_k}")
        self.spec = text_spec(name, description, "query", description="Words to look for.")
        self.max_output_chars = max_output_chars
        self._index = index
        self._top_k = top_k

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        """Search for ``arguments["query"]``."""
        found = await TOOL_THREADS.run(
            lambda: self._index.search_many([arguments["query"]], self._top_k),
            deadline_s=context.deadline_s,
        )
        lines = (f"{title}: {text}" if title else text for (_, title, text), _ in found[0])
        return "\n".join(lines) or "No document matches."

    async def ping(self) -> str:
        """What `agentrl check` tells of it."""
        ask = getattr(self._index, "ping", None)
        if ask is not None:
            return str(await TOOL_THREADS.run(ask))
        size = getattr(self._index, "__len__", None)
        return f"{size()} documents" if size is not None else type(self._index).__name__

    async def close(self) -> None:
        """Ends the retriever, where it has something to end."""
        closing = getattr(self._index, "close", None)
        result = None if closing is None else closing()
        if inspect.isawaitable(result):
            await result


def make_search(
    documents: str | None = None,
    *,
    url: str | None = None,
    top_k: int = 3,
    name: str = "search",
    description: str = "Search the documents for words.",
    max_output_chars: int | None = None,
    index_dir: str | None = None,
    base_dir: str,
) -> Tool:
    """The built-in tool ``search``: over documents in this process, or a server's.

    Args:
        documents: as ``load_index`` takes it.
        url: of a server of `agentrl serve search`, in place of ``documents``.
        top_k, name, description, max_output_chars: see ``SearchTool``.
        index_dir: where the index of a file is kept.
        base_dir: where relative paths start.

    Raises:
        ConfigError: neither or both of ``documents`` and ``url``.
    """
    if (documents is None) == (url is None):
        raise ConfigError(
            "ToolEnv.tools: search takes either documents, a file or task.py:name, or the url of a "
            f"server, got documents={documents!r} and url={url!r}"
        )
    index: Retriever
    if url is not None:
        index = SearchClient(url)
    else:
        assert documents is not None
        index = load_index(documents, base_dir, index_dir)
    return SearchTool(
        index, top_k=top_k, name=name, description=description, max_output_chars=max_output_chars
    )


@functools.lru_cache(maxsize=16)
def load_index(documents: str, base_dir: str, index_dir: str | None = None) -> Retriever:
    """The index of documents that a configuration names, opened once a process.

    Args:
        documents: a ``.jsonl`` or ``.parquet`` file or a folder of ``datasets.save_to_disk``, which
            are indexed on disk (``read_corpus`` says what a row is); or ``file.py:name`` or
            ``module:name`` of a retriever, or of ``(id, title, text)`` documents.
        base_dir: where relative paths start.
        index_dir: where indices lie; by default the user's cache.

    Raises:
        DataError: the file cannot be read, or a line is no document; it is named.
        ConfigError: the reference names nothing.
    """
    if ":" not in documents or documents.endswith(_FILES):
        folder = None if index_dir is None else Path(base_dir, Path(index_dir).expanduser())
        return DiskIndex(Path(base_dir, Path(documents).expanduser()), folder)
    found = load_named(documents, base_dir, _broken)
    return found if isinstance(found, Retriever) else SearchIndex(found)


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"documents{rule}")
