"""MCP server spec: which server, which of its tools, and for whom."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentrl.types.section import ActsWith, Seconds, Section, Words

_OF_A_PROGRAM = ActsWith("command", but=((),))


class McpServerSpec(Section):
    """One MCP server, whose tools are on offer (needs ``pip install 'mcp>=2'``)."""

    command: Words = ()
    """A program and its arguments that speaks on its standard streams. ``python``
    is this interpreter."""
    url: str | None = None
    """Or the address of one that speaks streamable HTTP."""
    cwd: Annotated[str | None, _OF_A_PROGRAM] = None
    """Folder that the program starts in, from the configuration's folder on, which is the default.
    """
    tools: Words | None = None
    """Those of its tools that are on offer; by default all."""
    prefix: str = ""
    """Put before the names of its tools."""
    scope: Literal["episode", "process"] = "process"
    """``process``: the episodes of a process share the server; ``episode``: each starts its own."""
    pass_env: Annotated[Words, _OF_A_PROGRAM] = ()
    """Names of environment variables that the program is given, beside PATH, HOME, LANG and
    TMPDIR."""
    env: Annotated[dict[str, str], _OF_A_PROGRAM] = Field(default_factory=dict)
    """Further variables of the program."""
    deadline_s: Seconds = 30.0
    """Seconds of a call; a server that does not answer by then has failed."""
    start_timeout_s: Seconds = 30.0
    """Seconds until it has listed its tools."""
    idempotent: bool = False
    """Whether calls may be sent again after a failure, though they may have been carried out
    already."""

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise self.broken(
                "command",
                f" or url must be given, and not both: it needs command or url, got "
                f"command={list(self.command)} url={self.url!r}",
            )
        return self

    def offered(self, name: str) -> str:
        """The name by which a model calls the tool that the server lists under ``name``."""
        return (self.prefix + re.sub(r"[^a-zA-Z0-9_-]", "_", name))[:64]
