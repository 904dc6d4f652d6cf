"""MCP tool: a tool of a server, as the model calls it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mcp import types

from agentrl.tools.base import Tool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.mcp.connection import McpConnection
from agentrl.tools.mcp.server_spec import McpServerSpec
from agentrl.tools.resources import opened
from agentrl.types import ToolSpec


class McpTool(Tool):
    """Sends its calls to a server.

    Args:
        listed: the tool as the server lists it.
        server: that it belongs to.
    """

    keeps_deadline = True

    def __init__(self, listed: types.Tool, server: McpTools) -> None:
        self._listed = listed
        self._server = server
        name = server.connection.spec.offered(listed.name)
        self.spec = ToolSpec(name, listed.description or "", dict(listed.input_schema))
        self.deadline_s = server.connection.spec.deadline_s
        self.idempotent = server.connection.spec.idempotent

    @property
    def owner(self) -> object:
        """The server's connection, which all its tools share."""
        return self._server.connection

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """What the server answers; where its tools are others now, they are offered."""
        connection = self._server.connection
        result, listed = await connection.call(
            self._listed.name, arguments, context.deadline_s
        )
        output = _output(result)
        return ToolOutput(
            output.content,
            error=output.error,
            images=output.images,
            tools=self._server.changes(listed, context),
        )


class McpTools:
    """The tools of one server; one object for each listed tool that does not change.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: McpConnection) -> None:
        self.connection = connection
        # Guards what was made: episodes of several loops share a server.
        self._lock = threading.Lock()
        self._made: dict[str, tuple[types.Tool, McpTool]] = {}

    def tools(self, listed: Sequence[types.Tool]) -> tuple[McpTool, ...]:
        """A tool for each; one that comes back after it was gone is another one."""
        with self._lock:
            made = {}
            for one in listed:
                known = self._made.get(one.name)
                made[one.name] = (
                    known if known and known[0] == one else (one, McpTool(one, self))
                )
            self._made = made
            return tuple(tool for _, tool in made.values())

    async def close(self) -> None:
        """End the server."""
        await self.connection.close()

    def changes(
        self, listed: Sequence[types.Tool], context: ToolContext
    ) -> tuple[object, ...] | None:
        """All tools on offer where the server's are others than those of the call's ``context``.

        What was taken off offer stays off, and a task that names its tools gets no new ones.
        """
        before = {
            name: tool.spec
            for name, tool in context.offered.items()
            if isinstance(tool, McpTool) and tool._server is self
        }
        names_its_own = (
            context.task is not None and context.task.info.get("tools") is not None
        )
        current = [
            tool
            for tool in self.tools(listed)
            if tool.spec.name in before
            or not (names_its_own or context.known.get(tool.spec.name) is tool)
        ]
        if before == {tool.spec.name: tool.spec for tool in current}:
            return None
        return (*(name for name in context.offered if name not in before), *current)


def mcp_tools(name: str, spec: McpServerSpec) -> tuple[McpTool, ...]:
    """The tools of a server, which is started where it does not run yet; for threads without a
    loop.

    Raises:
        ToolError: it cannot be started, or lists what is no tool.
    """

    def opens() -> McpTools:
        return McpTools(McpConnection(name, spec))

    server = (
        opens() if spec.scope == "episode" else opened(("mcp", name, repr(spec)), opens)
    )
    return server.tools(server.connection.listed())


def _output(result: types.CallToolResult) -> ToolOutput:
    texts: list[str] = []
    images: list[object] = []
    for part in result.content:
        if isinstance(part, types.TextContent):
            texts.append(part.text)
        elif isinstance(part, types.ImageContent):
            images.append(base64.b64decode(part.data))
        else:
            texts.append(part.model_dump_json(by_alias=True, exclude_none=True))
    if not texts and not images and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if result.is_error:
        return ToolOutput(f"Error: {text}", error="exception", images=tuple(images))
    return ToolOutput(text, images=tuple(images))
