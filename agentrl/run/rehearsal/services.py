"""Services: opens, starts or asks what a stage's tools need, before an episode does.

- A resource is opened; one with a method ``ping`` is asked.
- A tool whose owner has a method ``ping`` is asked, such as search at a URL.
- An MCP server is started or connected to, and lists its tools.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrl.envs import EnvSpec
from agentrl.errors import AgentRLError, ConfigError, MachineError, ToolError
from agentrl.tools import (
    McpServerSpec,
    Tool,
    ToolFactory,
    close_tools,
    open_resources,
    owners_of,
    resolve_tools,
)
from agentrl.types.user_code.load import needed
from agentrl.types.user_code.place import described
from agentrl.types.user_code.wall import failed_as, wall


@dataclass(frozen=True, slots=True)
class Pinged:
    """A service that answered.

    Args:
        kind: ``resource``, ``tool`` or ``mcp``.
        name: as the configuration or the tool has it.
        told: what it said of itself.
        seconds: until it answered.
    """

    kind: str
    name: str
    told: str
    seconds: float


def ping_services(env: EnvSpec) -> Iterator[Pinged]:
    """Asks each service that an environment's tools need.

    Raises:
        MachineError: one does not answer; it is named with what it said.
        ConfigError: it is named wrongly.
    """
    settings = env.kwargs
    resources: Mapping[str, Any] = settings.get("resources", {})
    for name, entry in resources.items():
        yield _asked("resource", name, partial(_resource, env, name, entry))
    tools = settings.get("tools", ())
    for entry in resolve_tools(tools, env.base_dir, frozenset(resources)):
        if isinstance(entry, Tool) and hasattr(entry.owner, "ping"):
            yield _asked("tool", entry.spec.name, partial(_ping, entry.owner))
        elif isinstance(entry, ToolFactory) and not entry.injected:
            what = f"{type(entry).__name__} of ToolEnv.tools raised"
            with wall(failed_as(ToolError, what, "; correct it")):
                made = entry.build()
            try:
                for owner, _ in owners_of(made):
                    if hasattr(owner, "ping"):
                        name = type(owner).__name__
                        yield _asked("tool", name, partial(_ping, owner))
            finally:
                close_tools(made)
    servers: Mapping[str, McpServerSpec] = settings.get("mcp", {})
    for name, spec in servers.items():
        yield _asked("mcp", name, partial(_server, name, spec))


def _asked(kind: str, name: str, ask: Callable[[], str]) -> Pinged:
    start = time.monotonic()

    def failed(error: BaseException) -> MachineError:
        what = f"{kind} {name!r} does not answer:"
        if isinstance(error, AgentRLError):
            return MachineError(f"{what} {error}")
        return MachineError(
            f"{what} {described(error)}; start it, or correct what names it"
        )

    with wall(failed, passes=(ConfigError,)):
        told = ask()
    return Pinged(kind, name, told, time.monotonic() - start)


def _resource(env: EnvSpec, name: str, entry: object) -> str:
    (opened,) = open_resources({name: entry}, env.base_dir).values()
    told = _ping(opened) if hasattr(opened, "ping") else ""
    return f"a {type(opened).__name__} is open" + (f", {told}" if told else "")


def _ping(owner: Any) -> str:
    async def ask() -> object:
        answer = owner.ping()
        return await answer if inspect.isawaitable(answer) else answer

    answer = asyncio.run(ask())
    return "it answers" if answer is None else str(answer)


def _server(name: str, spec: McpServerSpec) -> str:
    with needed("env.mcp", "mcp"):
        from agentrl.tools.mcp.mcp_tool import mcp_tools

    tools = mcp_tools(name, spec)
    try:
        names = ", ".join(tool.spec.name for tool in tools)
        return f"tools: {names or 'none'}"
    finally:
        # A server of the scope `process` is shared, and lives as long as this process.
        if spec.scope == "episode":
            close_tools(tools)
