"""MCP server spec: which server, which of its tools, and for whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl.errors import ConfigError


@dataclass(frozen=True)
class McpServerSpec:
    """A server whose tools are on offer.

    Args:
        command: a program and its arguments that speaks on its standard streams.
        url: or the address of one that speaks streamable HTTP.
        cwd: the folder that the program starts in; None for this process's.
        tools: those on offer; None for all that it lists.
        prefix: put before the names of its tools.
        scope: whether all episodes of a process share it, or each starts its own.
        pass_env: names of this process's variables that the program is given, beside ``PATH``,
            ``HOME``, ``LANG`` and ``TMPDIR``.
        env: further variables of the program.
        deadline_s: seconds of a call.
        start_timeout_s: seconds until it has listed its tools.
        idempotent: calls may be sent again, though they may have been carried out already.

    Raises:
        ConfigError: neither or both of ``command`` and ``url``.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    cwd: str | None = None
    tools: tuple[str, ...] | None = None
    prefix: str = ""
    scope: Literal["episode", "process"] = "process"
    pass_env: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    deadline_s: float = 30.0
    start_timeout_s: float = 30.0
    idempotent: bool = False

    def offered(self, name: str) -> str:
        """The name by which a model calls the tool that the server lists under ``name``."""
        return (self.prefix + re.sub(r"[^a-zA-Z0-9_-]", "_", name))[:64]

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError(
                f"ToolEnv.mcp: a server needs command or url, and not both, got "
                f"command={list(self.command)} url={self.url!r}",
                fields=["ToolEnv.mcp"],
            )
