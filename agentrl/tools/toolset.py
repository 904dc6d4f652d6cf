"""Toolset: the tools that a user names, made, set up, saved and closed for one episode."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias, cast

from pydantic import Field

from agentrl.errors import ConfigError, ToolError
from agentrl.tools.base import BuiltInSettings, Tool, ToolLimits, with_limits
from agentrl.tools.builtin.calculator import CalculatorTool
from agentrl.tools.builtin.fetch_url import FetchUrlTool
from agentrl.tools.builtin.sandbox_tools import FilesTool, PythonTool, ShellTool
from agentrl.tools.builtin.submit import SubmitTool
from agentrl.tools.context import ToolContext
from agentrl.tools.factory import ToolClass, ToolFactory, tool_methods
from agentrl.tools.mcp.server_spec import McpServerSpec
from agentrl.tools.resources import (
    close_owner,
    close_tools,
    open_resources,
    owners_of,
    set_up,
    share,
    with_resources,
)
from agentrl.tools.search.search_tool import make_search
from agentrl.types import place_of_object
from agentrl.types.section import Arguments, Count, Positive, Seconds, Section
from agentrl.types.user_code.load import built_in, load_named, needed


class ToolReference(Section):
    """One tool on offer. A plain text is short for ``function`` alone."""

    function: str
    """``file.py:name``, ``module:name``, or a built-in tool: ``python``, ``shell``, ``files``,
    ``search``, ``fetch_url``, ``calculator`` or ``submit``. An object is shared by all episodes of
    a process; of a class, toolset or factory each episode gets its own."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments for a class, a factory, a function that makes tools, or a built-in tool."""
    deadline_s: Seconds | None = None
    """Seconds that a call may take; like all that follows, in place of the tool's own."""
    max_output_chars: Count | None = None
    """Characters of output that the model is shown, of its head and its tail."""
    max_output_tokens: Count | None = None
    """Tokens of output that the model is shown, by its own tokenizer."""
    max_concurrent: Count | None = None
    """Calls that run at once, over all episodes of a process; the wait counts for no deadline."""
    calls_per_s: Positive | None = None
    """Calls that begin in a second, over all episodes of a process."""
    max_calls: Count | None = None
    """Calls that an episode may make; further ones are answered with that."""
    idempotent: bool | None = None
    """Whether a call may be sent again after a failure of ours, though it may have been carried out
    already."""

    @property
    def limits(self) -> ToolLimits:
        """Those that are given."""
        given = self.model_dump(exclude={"function", "args"}, exclude_none=True)
        return cast(ToolLimits, given)


ToolEntry: TypeAlias = Tool | ToolFactory | ToolReference | str | type
"""What may stand among the tools of an environment; a class is one of ``@tool`` methods."""


def resolve_tools(
    entries: Sequence[ToolEntry],
    base_dir: str | Path | None = None,
    resources: Iterable[str] = (),
) -> tuple[Tool | ToolFactory, ...]:
    """Tools as a user names them. An object is shared by all episodes; a class or factory makes
    each its own.

    Args:
        entries: tools and factories as they are, references, or text as a reference without
            arguments.
        base_dir: the folder that relative paths start from.
        resources: names of what classes and factories may take beside their arguments.

    Raises:
        ConfigError: text that names nothing, or a file that cannot be read.
        ToolError: something that is no tool, or does not take its arguments.
    """
    names = frozenset(resources)
    return tuple(_resolved(entry, base_dir, names) for entry in entries)


def _resolved(
    entry: ToolEntry, base_dir: str | Path | None, resources: frozenset[str]
) -> Tool | ToolFactory:
    if isinstance(entry, str):
        entry = ToolReference(function=entry)
    if not isinstance(entry, ToolReference):
        return _made_of(
            entry, getattr(entry, "__qualname__", None) or repr(entry), {}, resources
        )
    name = entry.function
    if built_in(name, BUILT_IN, _broken) is not None:
        # The arguments go as text, since a cache's key must be hashable.
        return _built_in(name, json.dumps(entry.args), str(base_dir or "."))
    found = load_named(name, base_dir, _broken)
    return _made_of(found, name, entry.args, resources)


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"ToolEnv.tools{rule}")


def _made_of(
    found: Any, name: str, args: Mapping[str, Any], resources: frozenset[str]
) -> Tool | ToolFactory:
    if isinstance(found, Tool):
        if args:
            raise ToolError(
                f"ToolEnv.tools: {name} is one object that all episodes share, and takes no args, "
                f"got {sorted(args)}; name a class or a factory, which makes each episode its own"
            )
        return found
    try:
        if isinstance(found, ToolFactory):
            return found.with_args(args, resources)
        if inspect.isclass(found) and not issubclass(found, Tool) and tool_methods(found):
            return ToolFactory(ToolClass(found)).with_args(args, resources)
        if (inspect.isclass(found) and issubclass(found, Tool)) or (
            inspect.isroutine(found) and args
        ):
            return ToolFactory(found).with_args(args, resources)
    except ToolError as error:
        raise ToolError(f"ToolEnv.tools: {error}") from None
    place = place_of_object(found) if callable(found) else ""
    what = f"{name} ({place})" if place else name
    kind = "class" if inspect.isclass(found) else type(found).__name__
    remedy = "decorate it with @tool"
    if kind == "function":
        remedy += f", or, where it makes tools, pass ToolFactory({name.rpartition(':')[2]})"
    raise ToolError(f"{what} is no tool but a {kind}; {remedy}")


@functools.lru_cache(maxsize=64)
def _built_in(name: str, args: str, base_dir: str) -> Tool:
    """A built-in tool, made once a process for equal arguments: it has no state."""
    make = BUILT_IN[name]
    parameters = inspect.signature(make).parameters
    extra = {"base_dir": base_dir} if "base_dir" in parameters else {}
    try:
        return make(**json.loads(args), **extra)
    except TypeError as error:
        own = [key for key in parameters if key not in ("base_dir", "settings")]
        taken = ", ".join([*own, *BuiltInSettings.__annotations__])
        raise ToolError(
            f"ToolEnv.tools: the built-in tool {name!r} with args {args}: {error}; its arguments "
            f"are: {taken}"
        ) from None


BUILT_IN: Mapping[str, Callable[..., Tool]] = {
    "calculator": CalculatorTool,
    "fetch_url": FetchUrlTool,
    "files": FilesTool,
    "python": PythonTool,
    "search": make_search,
    "shell": ShellTool,
    "submit": SubmitTool,
}


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
            # What was opened before the fault is closed: nobody gets this toolset.
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
            self.tools += [
                with_limits(with_resources(tool, given), limits) for tool in made
            ]

    def _ask(self, servers: Mapping[str, McpServerSpec]) -> None:
        for name, spec in servers.items():
            with needed("ToolEnv.mcp", "mcp"):
                from agentrl.tools.mcp.mcp_tool import mcp_tools

            made = mcp_tools(name, spec)
            self.tools += made
            if spec.scope == "episode":
                self._own += made
