"""Serve commands: ``agentrl serve policy`` and ``agentrl serve search``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agentrl.cli.terminal import Count, Port, PositiveCount, Seconds, say
from agentrl.errors import ConfigError
from agentrl.guards.http_guard import LOOPBACK, TOKEN_VARIABLE, own_hosts


def serve_policy_command(
    model: Path,
    config: Path,
    /,
    *overrides: str,
    host: str = "127.0.0.1",
    port: Port = 8000,
    out: Path | None = None,
    idle_timeout_s: Seconds = 300.0,
    allow_host: tuple[str, ...] = (),
    token: bool = True,
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
        The address to listen on; others than this machine's own are reached without encryption.
    port
        The port; 0 takes a free one.
    out
        A new run directory that keeps the episodes, for `agentrl ls` and `agentrl show`.
    idle_timeout_s
        Seconds without a request after which an episode ends.
    allow_host
        A name by which the server may also be asked for, such as a proxy's.
    token
        Answer who brings the token alone: that of the variable AGENTRL_TOKEN, or else a new one,
        which is printed. Without it everybody on this machine may use the policy.
    """
    if not token and host not in LOOPBACK:
        raise ConfigError(
            f"--no-token needs a --host of this machine alone ({', '.join(LOOPBACK)}), got {host}; "
            "leave --no-token out"
        )
    given = os.environ.get(TOKEN_VARIABLE, "")
    secret = (given or secrets.token_urlsafe(24)) if token else ""
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
        token=secret,
        hosts=allow_host,
        announce=lambda url: _announce(model, url, "" if given else secret),
    )


def _announce(model: Path, url: str, token: str) -> None:
    say(f"serving {model} at {url} (POST {url}/episodes opens an episode)")
    if token:
        say(
            f"its token, for Authorization: Bearer TOKEN or an OpenAI client's api_key: {token}"
        )


def serve_search_command(
    documents: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: Port = 8001,
    top_k: PositiveCount = 3,
    index_dir: Path | None = None,
    cached: Count = 10_000,
    allow_host: tuple[str, ...] = (),
) -> None:
    """Serve a search over documents, in Search-R1's shapes.

    POST /retrieve takes {"queries": [...], "topk": 3, "return_scores": true}; tools ask it by
    env.tools: [{function: search, args: {url: "http://HOST:PORT"}}].

    Parameters
    ----------
    documents
        A .jsonl or .parquet file or a folder of datasets.save_to_disk, which is indexed on disk at
        the first time; or file.py:name of a retriever of yours.
    host
        The address to listen on; everybody who reaches it may search.
    port
        The port; 0 takes a free one.
    top_k
        Documents of a request that does not say how many.
    index_dir
        Where the index is kept; by default in the user's cache.
    cached
        Answers kept in memory.
    allow_host
        A name by which the server may also be asked for, besides its addresses.
    """
    from agentrl.tools.search.search_tool import load_index
    from agentrl.tools.search.service import search_app, serve_search

    index = load_index(documents, ".", None if index_dir is None else str(index_dir))
    app = search_app(
        index, top_k=top_k, cached=cached, hosts=(*own_hosts(host), *allow_host)
    )
    size = getattr(index, "__len__", None)
    found = f"{size()} documents of " if size is not None else ""
    serve_search(
        app,
        host,
        port,
        lambda url: say(f"serving {found}{documents} at {url} (POST {url}/retrieve)"),
    )
