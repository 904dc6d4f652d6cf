"""MCP connection: one server, kept in a thread of its own loop, started again where it died.

- Every connection of a process lives in one thread's event loop; callers come from others.
- A call is sent once. Whether it may be sent again is the executor's to decide.
- What the server asks of us (sampling, elicitation, roots) is refused.
- A server that sends too many messages in a row which answer nothing is ended, by whatever way
  they come.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from mcp import types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from agentrl.errors import ToolError
from agentrl.tools.execution.faults import EndpointError
from agentrl.tools.mcp.server_spec import McpServerSpec
from agentrl.tools.mcp.transport import bounded_client, environment, program, server_at
from agentrl.tools.signature import schema_validator
from agentrl.types.loop_thread import LoopThread
from agentrl.types.machine import told_end

logger = logging.getLogger(__name__)

_PING_S = 5.0
_MAX_TOOLS = 1000
_MAX_PAGES = 100
_MAX_UNASKED = 1000
"""Messages in a row that answer nothing."""


class _Loop:
    """The loop of all connections of this process, in a daemon thread."""

    def __init__(self) -> None:
        # Guards _loop.
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None

    def submit(self, work: Any) -> Future[Any]:
        """Runs a coroutine there."""
        with self._lock:
            if self._loop is None:
                self._loop = LoopThread("agentrl-mcp")
        return self._loop.submit(work)


_LOOP = _Loop()


class McpConnection:
    """A server that is started at the first need.

    Args:
        name: as the configuration names it.
        spec: which server.
    """

    def __init__(self, name: str, spec: McpServerSpec) -> None:
        self.name = name
        self.spec = spec
        # All that follows belongs to the connections' loop.
        self._session: ClientSession | None = None
        self._serving: asyncio.Task[None] | None = None
        # Two calls at once find no session, and only one of them may start it.
        self._starting = asyncio.Lock()
        self._changed = False
        self._tools: tuple[types.Tool, ...] = ()
        # The end of a program's standard error.
        self._errors = bytearray()

    def listed(self) -> tuple[types.Tool, ...]:
        """The server's tools; waits until it runs. For threads without a loop.

        Raises:
            ToolError: it cannot be started, or lists what is no tool.
        """
        found: tuple[types.Tool, ...] = _LOOP.submit(self._listed()).result()
        return found

    async def call(
        self, tool: str, arguments: Mapping[str, Any], deadline_s: float
    ) -> tuple[types.CallToolResult, tuple[types.Tool, ...]]:
        """What a tool answers, and the server's tools then.

        Raises:
            EndpointError: the server failed.
        """
        work = self._call(tool, dict(arguments), deadline_s)
        answer: tuple[
            types.CallToolResult, tuple[types.Tool, ...]
        ] = await asyncio.wrap_future(_LOOP.submit(work))
        return answer

    async def close(self) -> None:
        """End the server."""
        await asyncio.wrap_future(_LOOP.submit(self._end()))

    async def _listed(self) -> tuple[types.Tool, ...]:
        try:
            await self._running()
        except EndpointError as error:
            raise ToolError(str(error), retryable=True) from error
        return self._tools

    async def _call(
        self, tool: str, arguments: dict[str, Any], deadline_s: float
    ) -> tuple[types.CallToolResult, tuple[types.Tool, ...]]:
        ends_at = asyncio.get_running_loop().time() + deadline_s
        session = await self._running()
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        try:
            # Not session.call_tool, which asks a second time on its own account.
            result = await session.send_request(
                types.CallToolRequest(params=params), types.CallToolResult, deadline_s
            )
        except MCPError as error:
            # The protocol's answer to an unknown tool or wrong arguments, which are the model's.
            if error.error.code == types.INVALID_PARAMS:
                text = types.TextContent(type="text", text=error.error.message)
                return types.CallToolResult(content=[text], is_error=True), self._tools
            await self._after_failure(session)
            raise self._failed(error, sent=True) from error
        except Exception as error:
            await self._end()
            raise self._failed(error, sent=True) from error
        if self._changed:
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._list(session)
            except ToolError:
                raise
            except Exception as error:
                await self._end()
                raise self._failed(error, sent=True) from error
        return result, self._tools

    async def _running(self) -> ClientSession:
        async with self._starting:
            if self._session is not None and self._serving and not self._serving.done():
                return self._session
            ready: asyncio.Future[ClientSession] = (
                asyncio.get_running_loop().create_future()
            )
            self._serving = asyncio.create_task(self._serve(ready))
            try:
                async with asyncio.timeout(self.spec.start_timeout_s):
                    self._session = await ready
                    await self._list(self._session)
            except (Exception, asyncio.CancelledError) as error:
                await self._end()
                if isinstance(error, (ToolError, asyncio.CancelledError)):
                    raise
                raise self._failed(error, sent=False) from error
            logger.info(
                "the MCP server %s runs, with %d tools",
                self.name,
                len(self._tools),
                extra={"event": "mcp_server_started", "server": self.name},
            )
            return self._session

    async def _serve(self, ready: asyncio.Future[ClientSession]) -> None:
        """Keeps the session open until the server ends, or this task is cancelled."""
        try:
            async with AsyncExitStack() as stack:
                ended = asyncio.Event()
                if self.spec.url is not None:
                    client = await stack.enter_async_context(bounded_client())
                    remote = server_at(self.spec.url, client)
                    read, write = await stack.enter_async_context(remote)
                else:
                    env = environment(self.spec.pass_env, self.spec.env)
                    self._errors.clear()
                    local = program(self.spec.command, env, self.spec.cwd, self._errors)
                    read, write, ended = await stack.enter_async_context(local)
                read = await stack.enter_async_context(_counted(read, ended))
                session = await stack.enter_async_context(
                    ClientSession(read, write, message_handler=self._heard)
                )
                await session.initialize()
                ready.set_result(session)
                await ended.wait()
            self._warn("it ended by itself, or sent what nobody asked for")
        except BaseException as error:
            if not ready.done():
                ready.set_exception(
                    error
                    if isinstance(error, Exception)
                    else ConnectionError("it was ended")
                )
            elif isinstance(error, Exception):
                self._warn(str(error))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _list(self, session: ClientSession) -> None:
        """Reads the server's tools.

        Raises:
            ToolError: it lists what is no tool, or lacks one that is asked for.
        """
        self._changed = False
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await session.send_request(
                types.ListToolsRequest(params=params), types.ListToolsResult, _PING_S * 2
            )
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) > _MAX_TOOLS:
                self._tools = self._wanted(found)
                return
        raise ToolError(
            f"ToolEnv.mcp: the server {self.name!r} lists its tools on more than {_MAX_PAGES} "
            "pages; it may not come to an end"
        )

    def _wanted(self, found: Sequence[types.Tool]) -> tuple[types.Tool, ...]:
        names = [tool.name for tool in found]
        asked = self.spec.tools
        if asked is not None and not self._tools and (lacking := set(asked) - set(names)):
            raise ToolError(
                f"ToolEnv.mcp: the server {self.name!r} has no tool {sorted(lacking)[0]!r}; it has "
                f"{', '.join(sorted(names)) or 'none'}"
            )
        if len(found) > _MAX_TOOLS or len(set(names)) < len(names):
            raise ToolError(
                f"ToolEnv.mcp: the server {self.name!r} lists {len(names)} tools, of which "
                f"{len(set(names))} have different names; at most {_MAX_TOOLS} are taken"
            )
        wanted = tuple(tool for tool in found if asked is None or tool.name in asked)
        called: dict[str, str] = {}
        for tool in wanted:
            name = self.spec.offered(tool.name)
            if not any(map(str.isalnum, tool.name)) or name in called:
                other = f" as that of {called[name]!r}" if name in called else ""
                raise ToolError(
                    f"ToolEnv.mcp: the server {self.name!r} lists a tool {tool.name!r}, which a "
                    f"model would call by the name {name!r}{other}; name in tools those that are "
                    "to be on offer"
                )
            called[name] = tool.name
            try:
                schema_validator(tool.input_schema, tool.name)
            except ToolError as error:
                raise ToolError(
                    f"ToolEnv.mcp: the server {self.name!r}: {error}"
                ) from error
        return wanted

    async def _heard(self, message: Any) -> None:
        self._changed = self._changed or isinstance(
            message, types.ToolListChangedNotification
        )

    async def _after_failure(self, session: ClientSession) -> None:
        """A server that does not answer a ping is ended, and started again at the next call."""
        try:
            async with asyncio.timeout(_PING_S):
                await session.send_ping()
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the server is of no more use.
            self._warn(f"it answers no ping: {type(error).__name__}")
            await self._end()

    async def _end(self) -> None:
        serving, self._serving, self._session = self._serving, None, None
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _warn(self, reason: str) -> None:
        reason = "; ".join(filter(None, (reason, told_end(self._errors))))
        logger.warning(
            "the MCP server %s failed, and is started again at the next call: %s",
            self.name,
            reason,
            extra={"event": "mcp_server_failed", "server": self.name, "error": reason},
        )

    def _failed(self, error: BaseException, *, sent: bool) -> EndpointError:
        # What does not fit the protocol takes many lines.
        text = str(error).partition("\n")[0]
        parts = (
            f"{type(error).__name__}: {text}".removesuffix(": "),
            told_end(self._errors),
        )
        reason = "; ".join(filter(None, parts))
        return EndpointError(f"the MCP server {self.name!r} failed: {reason}", sent=sent)


@asynccontextmanager
async def _counted(read: Any, ended: asyncio.Event) -> AsyncIterator[Any]:
    """The messages of ``read``, which end with the server or after too many that answer nothing."""
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def pass_on() -> None:
        unasked = 0
        async with send:
            async for message in read:
                is_answer = isinstance(message, SessionMessage)
                is_answer = is_answer and not hasattr(message.message, "method")
                unasked = 0 if is_answer else unasked + 1
                if unasked > _MAX_UNASKED:
                    ended.set()
                    return
                await send.send(message)

    passing = asyncio.create_task(pass_on())
    try:
        yield receive
    finally:
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
        receive.close()
