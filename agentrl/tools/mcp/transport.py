"""MCP transports: a server's messages over a program's standard streams or over HTTP.

Nothing that a server sends fills the memory. A line that is too long ends the program. An answer
over HTTP has at most as many bytes, an event of a stream too, and neither is unpacked.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp import types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from agentrl.types.machine import keep_end, program_path

MAX_LINE_BYTES = 4 * 2**20
_PIPE_LEFT_OPEN_S = 1.0
"""For the standard error of a program that was ended; one of its own may hold it open."""
_INHERITED = ("HOME", "LANG", "TMPDIR")


def environment(pass_env: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program: few of this process's, and its own."""
    inherited = {
        name: os.environ[name] for name in (*_INHERITED, *pass_env) if name in os.environ
    }
    return {"PATH": program_path(), **inherited, **env}


@asynccontextmanager
async def program(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None, errors: bytearray
) -> AsyncIterator[Any]:
    """Starts a program in a folder and gives the streams of its messages, and an event for its end;
    ends it, and all that it started.

    Args:
        command: the program and its arguments.
        env: its variables.
        cwd: its folder; None for this process's.
        errors: takes the end of its standard error.

    Raises:
        OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=cwd,
        limit=MAX_LINE_BYTES,
        # Its own process group, by which it is ended with all that it started.
        start_new_session=True,
    )
    said, read = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    write, asked = anyio.create_memory_object_stream[SessionMessage](0)
    ended = asyncio.Event()
    assert process.stderr is not None
    complaints = asyncio.create_task(keep_end(process.stderr, errors))
    tasks = [
        complaints,
        asyncio.create_task(_read_lines(process, said, ended, complaints)),
        asyncio.create_task(_write_lines(process, asked)),
    ]
    try:
        yield read, write, ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _kill(process)
        await process.wait()
        for stream in (said, read, write, asked):
            stream.close()


async def _read_lines(
    process: asyncio.subprocess.Process,
    said: Any,
    ended: asyncio.Event,
    complaints: asyncio.Task[None],
) -> None:
    assert process.stdout is not None
    async with said:
        while True:
            try:
                line = await process.stdout.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                break
            try:
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError as error:
                await said.send(error)
            else:
                await said.send(SessionMessage(message))
        _kill(process)
        # Before anybody hears of its end: the reason stands there.
        await asyncio.wait([complaints], timeout=_PIPE_LEFT_OPEN_S)
        ended.set()


async def _write_lines(process: asyncio.subprocess.Process, asked: Any) -> None:
    assert process.stdin is not None
    # A program that has ended takes nothing more: reading tells of its end.
    with suppress(OSError):
        async for one in asked:
            line = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


_READ_S = 300.0
"""A stream of events may be silent for so long."""


def server_at(url: str, client: httpx2.AsyncClient) -> AbstractAsyncContextManager[Any]:
    """The streams of a server's messages, by a client of ``bounded_client``."""
    return streamable_http_client(
        url, http_client=client, max_sse_event_size=MAX_LINE_BYTES
    )


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
        if (
            not response.headers.get("content-type", "")
            .lower()
            .startswith("text/event-stream")
        ):
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
                raise httpx2.StreamError(
                    f"the answer has more than {MAX_LINE_BYTES:,} bytes"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
