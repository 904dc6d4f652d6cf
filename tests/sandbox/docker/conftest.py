"""A real engine for the session: the one of DOCKER_HOST, or one started here with a folder and
socket of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import requests

from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.docker import DockerSettings
from agentrl.sandbox.docker.images import prepare
from agentrl.sandbox.docker.settings import LOCAL_PYTHON
from agentrl.sandbox.forkserver.hosts import close_servers
from tests.kit.waiting import DEADLINE_S


class Engine:
    """A Docker engine started by hand; everything of it lies in one folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.host = f"unix://{folder}/s.sock"

    def start(self) -> None:
        folders = [
            "--data-root",
            f"{self.folder}/root",
            "--exec-root",
            f"{self.folder}/exec",
        ]
        options = [
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "--pidfile",
            f"{self.folder}/pid",
        ]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["dockerd", *folders, *options, *self.options, "-H", self.host],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + DEADLINE_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"the engine did not start: {said}")
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            client = docker.DockerClient(self.host, version="auto", timeout=DEADLINE_S)
        except (docker.errors.DockerException, requests.RequestException):
            return False
        client.close()
        return True

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)


@pytest.fixture(scope="session")
def dockerd() -> str:
    path = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        pytest.skip("dockerd is missing: apt-get install -y docker.io, or set DOCKER_HOST")
    if os.getuid() != 0:
        pytest.skip("starting an engine needs root: set DOCKER_HOST to one that runs")
    return path


@pytest.fixture(scope="session")
def new_engine(dockerd: str) -> Iterator[Engine]:
    """An engine that a test may stop and start; apart from the one that the others use."""
    folder = Path(tempfile.mkdtemp(prefix="agentrl-engine-"))
    engine = Engine(folder)
    try:
        engine.start()
        yield engine
        engine.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def engine_host(request: pytest.FixtureRequest) -> str:
    if named := os.environ.get("DOCKER_HOST"):
        return named
    engine: Engine = request.getfixturevalue("new_engine")
    return engine.host


@pytest.fixture(scope="session")
def settings(engine_host: str) -> Iterator[DockerSettings]:
    """An engine that holds the image of the running Python."""
    settings = DockerSettings(host=engine_host, max_sandboxes=32)
    prepare([LOCAL_PYTHON], settings)
    yield settings
    close_servers()  # before the engine ends


@pytest.fixture
def client(settings: DockerSettings) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(settings.host, version="auto")
    yield client
    client.close()


@pytest.fixture
def spec(settings: DockerSettings) -> SandboxSpec:
    return SandboxSpec("docker", image=LOCAL_PYTHON, docker=settings)
