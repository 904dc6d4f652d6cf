"""A small HTTP server that misbehaves as it is told, one behaviour a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What one request gets.

    Args:
        status, body, headers: of the answer; a mapping or list is sent as JSON.
        cut: bytes of the body that are sent before the connection is closed; None sends all.
        hang: the answer never comes.
    """

    status: int = 200
    body: Any = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: bool = False


def said(
    text: str | None, *, calls: Sequence[Mapping[str, Any]] = (), **choice: Any
) -> Reply:
    """A completion."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    return Reply(
        body={
            "choices": [{"message": message, "finish_reason": "stop", **choice}],
            "usage": usage,
        }
    )


def failed(status: int, message: str = "no", code: str = "", **headers: str) -> Reply:
    """An error in OpenAI's shape; header names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": {"message": message, "code": code}}, named)


@dataclass
class OddServer:
    """Answers request number n with ``replies[n]``, the last one for ever.

    Attributes:
        url: the base URL, ``/v1`` included.
        asked: the bodies that came; ``headers`` likewise.
        most_at_once: requests that were in flight together.
    """

    replies: Sequence[Reply]
    url: str = ""
    asked: list[Any] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    _running: int = 0

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                k.lower(): v
                for k, _, v in (line.partition(": ") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
            self.asked.append(json.loads(body) if body else None)
            self.headers.append(headers)
            if reply.hang:
                await reader.read()  # until the client gives up
                return
            raw = (
                reply.body.encode()
                if isinstance(reply.body, str)
                else json.dumps(reply.body).encode()
            )
            lines = [
                f"HTTP/1.1 {reply.status} said",
                f"Content-Length: {len(raw)}",
                "Connection: close",
            ]
            lines += [f"{name}: {value}" for name, value in reply.headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + raw[: reply.cut])
            await writer.drain()
        finally:
            self._running -= 1
            writer.close()


@asynccontextmanager
async def odd_server(*replies: Reply) -> AsyncIterator[OddServer]:
    """A server on a free port of this machine."""
    odd = OddServer(replies)
    server = await asyncio.start_server(odd.serve, "127.0.0.1", 0)
    odd.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield odd
    finally:
        server.close()
