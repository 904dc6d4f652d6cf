"""Search client: documents from a server of ``agentrl serve search``, or of Search-R1's protocol.

Its failures are ours, never the model's: the call is tried again, and then the episode has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.errors import ConfigError
from agentrl.tools.execution.faults import EndpointError
from agentrl.tools.search.retriever import Document, Hit

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
            raise self._failed(f"no answer of /retrieve: {type(error).__name__}: {error}") from None
        if len(found) != len(queries):
            raise self._failed(f"{len(found)} results for {len(queries)} queries")
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
        return _client, (self.url, self._timeout_s)

    def _asked(self, method: str, url: str, **given: Any) -> Mapping[str, Any]:
        try:
            response = self._http.request(method, url, **given)
            if response.status_code in _REFUSED:
                raise QueryRefusedError(f"the search was refused: {response.text:.300}")
            response.raise_for_status()
            answer = response.json()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise self._failed(f"{type(error).__name__}: {error}", sent=False) from error
        except QueryRefusedError:
            raise
        except (httpx.HTTPError, ValueError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, Mapping):
            raise self._failed(f"answered {answer!r:.100}")
        return answer

    def _failed(self, reason: str, *, sent: bool = True) -> EndpointError:
        return EndpointError(f"the search server {self._root} failed: {reason}", sent=sent)


def _client(url: str, timeout_s: float) -> SearchClient:
    return SearchClient(url, timeout_s=timeout_s)


def _hit(entry: Mapping[str, Any]) -> Hit:
    document = entry["document"]
    title, text = document.get("title"), document.get("text")
    if text is None:
        first, _, text = document["contents"].partition("\n")
        title = first.strip('"') if title is None else title
    return Hit(Document(str(document.get("id", "")), title or "", str(text)), float(entry["score"]))
