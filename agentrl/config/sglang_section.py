"""The settings of SGLang servers (docs/sglang.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.types.section import Arguments, Listed, Natural, Seconds, Section

__all__ = ["SGLangConfig"]


class SGLangConfig(Section):
    """Servers of ``rollout.engine: sglang``, and how weights reach them."""

    python: str | None = None
    """Interpreter of the servers' environment; by default that of ``agentrl install sglang``."""
    command: Listed[str] = ()
    """Command that starts a server, instead of that interpreter: it gets the arguments of ``sglang.launch_server``,
    must end with its server, and needs ``device``."""
    urls: Listed[str] = ()
    """Servers that run already, instead of starting some; they must serve this model and have no other owner."""
    weight_sync: Literal["disk", "tensor", "group"] = "tensor"
    """By a folder that every server reads, by tensors in HTTP calls, or by broadcast in a process group."""
    group_address: str = "127.0.0.1"
    """This machine's address as servers reach it, for ``weight_sync: group``."""
    device: Literal["cpu", "cuda"] | None = None
    """Of the servers that are started; by default what their environment offers."""
    server_args: Arguments = Field(default_factory=dict)
    """Further arguments of ``sglang.launch_server`` by name, without dashes in front; true is a flag."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the servers."""
    api_key_env: str | None = None
    """Environment variable with the servers' API key."""
    startup_timeout_s: Seconds = 600.0
    """Until a server must be ready."""
    call_timeout_s: Seconds = 60.0
    """Of a call that neither generates nor moves weights."""
    update_timeout_s: Seconds = 600.0
    """Of a call that moves weights."""
    health_interval_s: Seconds = 10.0
    """Between looks at each server."""
    max_restarts: Natural = 3
    """Of one server in a stage, until it is given up."""
