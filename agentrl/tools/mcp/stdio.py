"""MCP over standard streams: a program's lines as messages, within bounds.

A line that is too long ends the program: nothing that it writes fills the memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp import types
from mcp.shared.message import SessionMessage

from agentrl.types.machine import keep_end, program_path

MAX_LINE_BYTES = 4 * 2**20
_PIPE_LEFT_OPEN_S = 1.0
"""For the standard error of a program that was ended; one of its own may hold it open."""
_INHERITED = ("HOME", "LANG", "TMPDIR")


def environment(pass_env: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program: few of this process's, and its own."""
    inherited = {name: os.environ[name] for name in (*_INHERITED, *pass_env) if name in os.environ}
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
    with suppress(OSError):
        async for one in asked:
            line = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
