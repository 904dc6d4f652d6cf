"""Search service: a retriever over HTTP, in Search-R1's shapes.

- ``POST /retrieve`` takes ``{"queries": [...], "topk": k, "return_scores": bool}`` and answers
  ``{"result": [[{"document": {...}, "score": s}, ...], ...]}``, a list a query; without scores each
  entry is the document alone.
- Queries that were answered lately are answered from memory; the others of a request are one batch.
- ``GET /health`` says that it is up, and of how many documents.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from agentrl.guards.addresses import in_url
from agentrl.guards.http_guard import HttpGuard
from agentrl.tools.search.retriever import Hit, Retriever
from agentrl.types.machine import listening_socket

_MAX_BODY = 64 * 2**20
_MAX_QUERIES = 1024
_MAX_QUERY_CHARS = 10_000
_MAX_TOP_K = 100


class RetrieveRequest(BaseModel):
    """What ``/retrieve`` takes; other keys are refused, since they would do nothing."""

    model_config = ConfigDict(extra="forbid")

    queries: list[str] = Field(max_length=_MAX_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=_MAX_TOP_K)
    return_scores: bool = False


class CachedRetriever:
    """The last answers of a retriever, by query and ``top_k``.

    Args:
        retriever: what finds.
        most: answers kept.
    """

    def __init__(self, retriever: Retriever, most: int) -> None:
        self._retriever = retriever
        self._most = most
        # Guards both below: requests run in threads.
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self.num_hits = 0

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See ``Retriever.search_many``."""
        with self._lock:
            found = {query: self._taken(query, top_k) for query in queries}
        asked = [query for query, hits in found.items() if hits is None]
        # Without the lock, so that requests search at once; two of one query both do.
        answers = self._retriever.search_many(asked, top_k) if asked else []
        fresh = dict(zip(asked, answers, strict=True))
        with self._lock:
            for query, hits in fresh.items():
                self._kept[query, top_k] = hits
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return [fresh[query] if query in fresh else found[query] or [] for query in queries]

    def _taken(self, query: str, top_k: int) -> list[Hit] | None:
        key = (query, top_k)
        if key not in self._kept:
            return None
        self.num_hits += 1
        self._kept.move_to_end(key)
        return self._kept[key]


def search_app(
    retriever: Retriever, *, top_k: int = 3, cached: int = 10_000, hosts: Sequence[str] = ()
) -> FastAPI:
    """The application.

    Args:
        retriever: what finds.
        top_k: documents of a request that does not say how many.
        cached: answers kept in memory.
        hosts: names by which it may be asked for, besides the loopback ones and addresses.
    """
    app = FastAPI(title="agentrl search", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(
        HttpGuard, refuse=_refused, hosts=hosts, addresses=True, max_body_bytes=_MAX_BODY
    )
    cache = CachedRetriever(retriever, cached)
    size = getattr(retriever, "__len__", None)

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> dict[str, Any]:
        for number, query in enumerate(request.queries):
            if len(query) > _MAX_QUERY_CHARS:
                raise HTTPException(
                    422,
                    f"queries[{number}] must have at most {_MAX_QUERY_CHARS} characters, got "
                    f"{len(query)}",
                )
        hits = await run_in_threadpool(
            cache.search_many, request.queries, request.topk or top_k
        )
        return {
            "result": [[_entry(hit, request.return_scores) for hit in own] for own in hits]
        }

    @app.get("/health")
    async def health() -> Mapping[str, Any]:
        documents = {} if size is None else {"documents": size()}
        return {"status": "ok", "cache_hits": cache.num_hits, **documents}

    return app


def serve_search(
    app: FastAPI, host: str, port: int, announce: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        app: of ``search_app``.
        host, port: the address; port 0 takes a free one.
        announce: told the URL once it is served.

    Raises:
        MachineError: the address cannot be listened on.
    """
    listening = listening_socket(host, port, "the search")
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=5
    )
    with listening:
        announce(f"http://{in_url(host)}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])


def _refused(_: Scope, status: int, message: str) -> Response:
    return JSONResponse({"detail": message}, status)


def _entry(hit: Hit, with_score: bool) -> dict[str, Any]:
    document_id, title, text = hit.document
    document = {
        "id": document_id,
        "title": title,
        "text": text,
        # As Search-R1's clients read it.
        "contents": f'"{title}"\n{text}',
    }
    return {"document": document, "score": hit.score} if with_score else document
