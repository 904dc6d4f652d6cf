"""Serve command: ``agentrl serve policy``."""

from __future__ import annotations

from pathlib import Path

from agentrl.cli.terminal import say
from agentrl.errors import ConfigError


def serve_policy_command(
    model: Path,
    config: Path,
    /,
    *overrides: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    out: Path | None = None,
    idle_timeout_s: float = 300.0,
) -> None:
    """Serve a policy to agents that bring their own loop, at an endpoint for each episode.

    POST /episodes opens an episode and names its base URL; its turns are recorded with ids,
    logprobs and versions.

    Parameters
    ----------
    model
        A run directory, whose last policy is served, or a model folder in Hugging Face's layout.
    config
        A configuration file: its engine, limits, sampling and rewards hold for every episode.
    overrides
        Settings that go before the file's, as key=value.
    host
        The address to listen on; every client that reaches it may use the policy.
    port
        The port; 0 takes a free one.
    out
        A new run directory that keeps the episodes, for `agentrl ls` and `agentrl show`.
    idle_timeout_s
        Seconds without a request after which an episode ends.
    """
    if not idle_timeout_s > 0:
        raise ConfigError(f"--idle-timeout-s must be more than 0, got {idle_timeout_s:g}")
    if out is not None and any(path.is_file() for path in out.rglob("*")):
        raise ConfigError(
            f"--out {out} must be a new or empty folder, and it holds files; name another folder"
        )
    from agentrl.run.policy_service import serve_policy

    serve_policy(
        model,
        config,
        overrides,
        host=host,
        port=port,
        out=out,
        idle_timeout_s=idle_timeout_s,
        announce=lambda url: say(
            f"serving {model} at {url} (POST {url}/episodes opens an episode)"
        ),
    )
