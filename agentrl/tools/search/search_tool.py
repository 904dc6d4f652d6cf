"""Search tool: a retriever as the model calls it, in this process or on a server.

A server's failures are ours, never the model's: the call is tried again, and then the episode has
failed. What a retriever of the user's raises goes to the model, as of any tool.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import urlsplit

import httpx

from agentrl.errors import ConfigError, ToolError
from agentrl.guards.secret_mask import beginning
from agentrl.tools.base import BuiltInSettings, BuiltInTool, Tool
from agentrl.tools.context import ToolContext
from agentrl.tools.execution.faults import EndpointError
from agentrl.tools.search.disk_index import DiskIndex
from agentrl.tools.search.retriever import Document, Hit, Retriever, SearchIndex
from agentrl.tools.signature import text_spec
from agentrl.tools.threads import TOOL_THREADS
from agentrl.types.user_code.load import load_named
from agentrl.types.user_code.values import shown
from agentrl.types.user_code.wall import DeadlineError

_REFUSED = frozenset({400, 413, 422})


class QueryRefusedError(ValueError):
    """The server refused a query: the model's doing, which it is told."""


class SearchClient:
    """A ``Retriever`` over HTTP; its connections are shared by all threads.

    Args:
        url: of the server; ``/retrieve`` is added where the address has no path.
        timeout_s: seconds of a request.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"search: url must be http://HOST:PORT, got {url!r}")
        self.url = url if parts.path.strip("/") else f"{url.rstrip('/')}/retrieve"
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._timeout_s = timeout_s
        self._http = httpx.Client(timeout=timeout_s)

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See ``Retriever.search_many``.

        Raises:
            EndpointError: the server failed, or answered something else.
            QueryRefusedError: it refused the queries, such as one that is too long.
        """
        body = {"queries": list(queries), "topk": top_k, "return_scores": True}
        answer = self._asked("POST", self.url, json=body)
        try:
            found = [[_hit(entry) for entry in hits] for hits in answer["result"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self.failed(
                f"no answer of /retrieve: {type(error).__name__}: {error}"
            ) from None
        if len(found) != len(queries):
            raise self.failed(f"{len(found)} results for {len(queries)} queries")
        return found

    def ping(self) -> str:
        """What ``/health`` says.

        Raises:
            EndpointError: the server does not answer.
        """
        health = self._asked("GET", f"{self._root}/health")
        return f"{health.get('documents', '?')} documents at {self._root}"

    def close(self) -> None:
        """Ends its connections."""
        self._http.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SearchClient, self.url, timeout_s=self._timeout_s), ()

    def _asked(self, method: str, url: str, **given: Any) -> Mapping[str, Any]:
        try:
            response = self._http.request(method, url, **given)
            if response.status_code in _REFUSED:
                raise QueryRefusedError(
                    f"the search was refused: {beginning(response.text, 300)}"
                )
            response.raise_for_status()
            answer = response.json()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise self.failed(f"{type(error).__name__}: {error}", sent=False) from error
        except QueryRefusedError:
            raise
        except (httpx.HTTPError, ValueError) as error:
            raise self.failed(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, Mapping):
            raise self.failed(f"answered {shown(answer, 100)}")
        return answer

    def failed(self, reason: str, *, sent: bool = True) -> EndpointError:
        """The error of a server that failed.

        Args:
            reason: how.
            sent: whether it may have been sent the request.
        """
        return EndpointError(f"the search server {self._root} failed: {reason}", sent=sent)


def _hit(entry: Mapping[str, Any]) -> Hit:
    document = Document.of(entry["document"])
    if document is None:
        raise KeyError("text")
    return Hit(document, float(entry["score"]))


_FILES = (".jsonl", ".parquet")


class SearchTool(BuiltInTool):
    """Finds documents; gives one line a document, ``title: text``, best first.

    Args:
        index: what is searched: an index, a ``SearchClient``, or a retriever of your own.
        top_k: documents given.
        settings: see ``BuiltInSettings``.

    Raises:
        ToolError: ``top_k`` below 1.
    """

    keeps_deadline = True
    idempotent = True

    spec = text_spec(
        "search",
        "Search the documents for words.",
        "query",
        description="Words to look for.",
    )

    def __init__(
        self, index: Retriever, *, top_k: int = 3, **settings: Unpack[BuiltInSettings]
    ) -> None:
        super().__init__(**settings)
        if top_k < 1:
            raise ToolError(
                f"tool {self.spec.name!r}: top_k must be at least 1, got {top_k}"
            )
        self._index = index
        self._top_k = top_k

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        """Search for ``arguments["query"]``."""
        try:
            found = await TOOL_THREADS.run(
                lambda: self._index.search_many([arguments["query"]], self._top_k),
                deadline_s=context.deadline_s,
            )
        except DeadlineError as error:
            if not isinstance(self._index, SearchClient):
                raise
            # It may end the wait before the client does, whose clock starts at each read.
            raise self._index.failed(str(error)) from error
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
    index_dir: str | None = None,
    base_dir: str,
    **settings: Unpack[BuiltInSettings],
) -> Tool:
    """The built-in tool ``search``: over documents in this process, or a server's.

    Args:
        documents: as ``load_index`` takes it.
        url: of a server of `agentrl serve search`, in place of ``documents``.
        top_k, settings: see ``SearchTool``.
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
    return SearchTool(index, top_k=top_k, **settings)


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
    found = load_named(documents, base_dir, lambda rule: ConfigError(f"documents{rule}"))
    return found if isinstance(found, Retriever) else SearchIndex(found)
