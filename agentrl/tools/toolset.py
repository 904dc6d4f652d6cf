"""Toolset: the tools of one episode, and the life of those that are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agentrl.errors import ToolError
from agentrl.tools.base import Tool, ToolLimits, with_limits
from agentrl.tools.context import ToolContext
from agentrl.tools.factory import ToolFactory
from agentrl.tools.mcp.server_spec import McpServerSpec
from agentrl.tools.reference import ToolEntry, resolve_tools
from agentrl.tools.resources import (
    close_owner,
    close_tools,
    open_resources,
    owners_of,
    set_up,
    share,
    with_resources,
)
from agentrl.types.user_code.load import needed

_NO_LIMITS: ToolLimits = {}


class Toolset:
    """Tools as a user names them: made, set up, saved and closed for one episode.

    Args:
        entries: tools, which episodes share; factories, which make this episode its own; or
            references to such.
        context: with the episode's task and state.
        base_dir: the folder that relative paths in ``entries`` and ``resources`` start from.
        resources: what all episodes of the process share, by name.
        servers: MCP servers by name, which are started where they do not run.

    Attributes:
        tools: all of them, those of servers behind the others.
        has_servers: whether some wait for a server.

    Raises:
        ToolError: something among ``entries`` is none, or a server cannot be started.
        ConfigError: text names nothing.
    """

    def __init__(
        self,
        entries: Sequence[ToolEntry],
        context: ToolContext,
        *,
        base_dir: str | Path | None,
        resources: Mapping[str, object],
        servers: Mapping[str, McpServerSpec],
    ) -> None:
        self.tools: list[Tool] = []
        self.has_servers = bool(servers)
        self._own: list[Tool] = []
        self._is_set_up = False
        try:
            self._make(entries, context, base_dir, resources)
            self._ask(servers)
        except BaseException:
            self.close_now()
            raise

    @property
    def is_shared(self) -> bool:
        """Whether episodes share all of them."""
        return not self._own

    async def set_up(self, context: ToolContext) -> None:
        """Once, before the first call: at the beginning, or after states were restored.

        Raises:
            ToolError: a ``setup`` raised; another attempt may succeed.
        """
        if not self._is_set_up:
            self._is_set_up = True
            for owner in self._owners():
                await set_up(owner, context)

    def states(self) -> list[Any] | None:
        """What the ``state_dict`` of each of the episode's own gives; None where one has none."""
        states = [getattr(owner, "state_dict", lambda: None)() for owner in self._owners()]
        return None if any(state is None for state in states) else states

    def restore(self, states: Sequence[Any]) -> None:
        """Gives each ``load_state_dict`` what its ``state_dict`` gave.

        Raises:
            ToolError: there are others than those that were saved.
        """
        owners: list[Any] = self._owners()
        if len(owners) != len(states):
            raise ToolError(
                f"the episode was saved with {len(states)} tools of its own, and has "
                f"{len(owners)}; go on with the configuration that it started with"
            )
        for owner, state in zip(owners, states, strict=True):
            owner.load_state_dict(state)

    async def close(self) -> None:
        """Close the episode's own, each whatever another one raises; a second call does nothing."""
        owners = self._owners()
        self._own.clear()
        async with AsyncExitStack() as stack:
            for owner in owners:
                stack.push_async_callback(close_owner, owner)

    def close_now(self) -> None:
        """The same from synchronous code; what is raised is logged."""
        close_tools(self._own)
        self._own.clear()

    def _owners(self) -> list[object]:
        return [owner for owner, _ in owners_of(self._own)]

    def _make(
        self,
        entries: Sequence[ToolEntry],
        context: ToolContext,
        base_dir: str | Path | None,
        resources: Mapping[str, object],
    ) -> None:
        resolved = resolve_tools(entries, base_dir, resources)
        given = open_resources(resources, base_dir)
        for entry, named in zip(resolved, entries, strict=True):
            made: Sequence[Tool]
            if isinstance(entry, ToolFactory):
                made = entry.build(context, given)
                self._own += made
            else:
                made = (entry,)
                share(entry)
            limits = getattr(named, "limits", _NO_LIMITS)
            self.tools += [with_limits(with_resources(tool, given), limits) for tool in made]

    def _ask(self, servers: Mapping[str, McpServerSpec]) -> None:
        for name, spec in servers.items():
            with needed("ToolEnv.mcp", "mcp"):
                from agentrl.tools.mcp.mcp_tool import mcp_tools

            made = mcp_tools(name, spec)
            self.tools += made
            if spec.scope == "episode":
                self._own += made
