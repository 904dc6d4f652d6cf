"""Engines that are reached in other ways: behind TLS, and podman's socket."""

from __future__ import annotations

import asyncio
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

from agentrl.errors import MachineError
from agentrl.sandbox import GUARANTEES, SandboxSpec
from agentrl.sandbox.conformance import check_sandbox
from agentrl.sandbox.docker import DockerSettings
from agentrl.sandbox.docker.containers import connect
from agentrl.sandbox.docker.images import prepare
from agentrl.sandbox.docker.settings import LOCAL_PYTHON
from agentrl.sandbox.forkserver.hosts import close_servers
from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S

from .conftest import Engine

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's path."""
    path = Path(tempfile.mkdtemp(prefix="agentrl-engine-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def certificates(folder: Path) -> None:
    """An authority, and with it a certificate that serves the engine and the client."""
    (folder / "extension").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    days, key = ["-days", "2"], ["-newkey", "rsa:2048", "-nodes", "-keyout"]
    authority = [
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca-key.pem",
        "-CAcreateserial",
        "-extfile",
        "extension",
    ]
    for words in (
        [
            "req",
            "-x509",
            *key,
            "ca-key.pem",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=authority",
            *days,
        ],
        ["req", *key, "key.pem", "-out", "request", "-subj", "/CN=127.0.0.1"],
        ["x509", "-req", "-in", "request", "-out", "cert.pem", *authority, *days],
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


async def test_an_engine_behind_tls_serves_runs_and_large_files(
    dockerd: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: apt-get install -y openssl")
    certificates(folder)
    address = f"tcp://127.0.0.1:{free_port()}"
    tls = [
        "--tlsverify",
        "--tlscacert",
        "ca.pem",
        "--tlscert",
        "cert.pem",
        "--tlskey",
        "key.pem",
    ]
    engine = Engine(
        folder,
        "-H",
        address,
        *[str(folder / word) if word.endswith(".pem") else word for word in tls],
    )
    engine.start()
    try:
        settings = DockerSettings(host=address, max_sandboxes=4)
        with pytest.raises(MachineError, match="no container engine answers"):
            connect(settings)
        # another authority's, as companies set
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "extension"))
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(folder))
        prepare([LOCAL_PYTHON], settings)
        data = os.urandom(3_000_000)
        spec = SandboxSpec("docker", image=LOCAL_PYTHON, docker=settings)

        async def runs() -> None:
            async with spec.build() as sandbox:
                for _ in range(10):
                    result = await sandbox.run(
                        "print(len(open('in', 'rb').read()))",
                        files={"in": data},
                        fetch=["in"],
                    )
                    assert (result.stdout, result.files["in"] == data) == (
                        b"3000000\n",
                        True,
                    )

        async with (
            asyncio.timeout(DEADLINE_S),
            asyncio.TaskGroup() as sandboxes,
        ):  # much goes both ways at once
            for _ in range(4):
                sandboxes.create_task(runs())
    finally:
        close_servers()
        engine.stop()


@pytest.fixture
def podman(folder: Path) -> Iterator[str]:
    """The address of podman's Docker-compatible socket."""
    if shutil.which("podman") is None:
        pytest.skip("podman is missing: apt-get install -y podman")
    if os.getuid() != 0:
        pytest.skip("podman is tried as root")
    # podman's defaults pass what small machines allow
    limits = '["nofile=1024:1024", "nproc=16384:16384"]'
    (folder / "containers.conf").write_text(f"[containers]\ndefault_ulimits = {limits}\n")
    address = f"unix://{folder}/s.sock"
    runtime = shutil.which("runc", path="/usr/sbin:/usr/bin") or "crun"
    folders = ["--root", f"{folder}/root", "--runroot", f"{folder}/run"]
    with open(folder / "log", "ab") as log:
        service = subprocess.Popen(
            [
                "podman",
                *folders,
                "--runtime",
                runtime,
                "system",
                "service",
                "--time=0",
                address,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf"},
        )
    deadline = time.monotonic() + 60
    while True:
        try:
            docker.DockerClient(address, version="auto").close()
            break
        except (docker.errors.DockerException, requests.RequestException):
            assert service.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "podman did not start"
            time.sleep(0.1)
    yield address
    close_servers()
    service.terminate()
    service.wait(DEADLINE_S)
    subprocess.run(["umount", f"{folder}/root/overlay"], check=False, capture_output=True)


@pytest.mark.wide
async def test_podman_passes_every_check_of_what_it_guarantees(podman: str) -> None:
    settings = DockerSettings(host=podman, max_sandboxes=16)
    prepare([LOCAL_PYTHON], settings)
    spec = SandboxSpec("docker", image=LOCAL_PYTHON, docker=settings)
    held = spec.check().held
    # it bounds the bytes of a file system, not its files
    assert held == set(GUARANTEES) - {"disk"}
    results = await check_sandbox(spec.build, guarantees=held)
    assert [result for result in results if not result.passed] == []
