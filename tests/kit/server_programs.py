"""Server programs: a real server for tests, ended by its own id."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx

from agentrl.engines import EnginePlace
from agentrl.engines.servers.client import ServerKind
from agentrl.engines.servers.process import ServerProcess
from agentrl.engines.servers.section import ServersSpec
from agentrl.engines.servers.server import reserved_port, server_url
from tests.kit.waiting import DEADLINE_S


def split(
    section: type[ServersSpec], settings: dict[str, Any]
) -> tuple[dict[str, Any], EnginePlace]:
    """Settings of the section, and the place that the others describe."""
    names = {field.name for field in fields(EnginePlace)} - section.model_fields.keys()
    own = {name: value for name, value in settings.items() if name not in names}
    return own, EnginePlace(**{name: settings[name] for name in settings.keys() & names})


@contextmanager
def running(servers: ServerKind, model: Path, folder: Path) -> Iterator[str]:
    """A server of a kind; its address, once it answers."""
    with reserved_port() as port:
        command = servers.command(model=model, port=port)
        process = ServerProcess(command, servers.environment(), folder / "server.log")
        url = server_url(port)
        try:
            end = time.monotonic() + DEADLINE_S
            while not _healthy(url):
                assert process.exit_code is None, process.log_tail()
                assert time.monotonic() < end, process.log_tail()
                time.sleep(0.5)
            yield url
        finally:
            process.end()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
