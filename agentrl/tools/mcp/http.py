"""MCP over HTTP: a client whose answers are bounded.

An answer has at most the bytes that a program's line may have, an event of a stream too, and
neither is unpacked: nothing that a server sends fills the memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from agentrl.tools.mcp.stdio import MAX_LINE_BYTES

_READ_S = 300.0
"""A stream of events may be silent for so long."""


def server_at(url: str, client: httpx2.AsyncClient) -> AbstractAsyncContextManager[Any]:
    """The streams of a server's messages, by a client of ``bounded_client``."""
    return streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE_BYTES)


def bounded_client() -> httpx2.AsyncClient:
    """A client that takes bounded answers alone; its timeouts are those of MCP's own."""
    return httpx2.AsyncClient(
        transport=_BoundedTransport(),
        headers={"Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(30.0, read=_READ_S),
    )


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the answer is compressed, which was not asked for")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > MAX_LINE_BYTES:
                raise httpx2.StreamError(f"the answer has more than {MAX_LINE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
