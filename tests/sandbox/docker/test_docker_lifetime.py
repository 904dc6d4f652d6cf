"""What is left when an owner, a container or an engine ends in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.docker import DockerSettings
from agentrl.sandbox.docker.containers import remove_orphaned_containers
from agentrl.sandbox.docker.images import prepare
from agentrl.sandbox.docker.settings import LOCAL_PYTHON
from agentrl.sandbox.forkserver.hosts import close_servers
from agentrl.sandbox.owner_id import Owner
from tests.kit.waiting import until

from .conftest import Engine

pytestmark = pytest.mark.docker

OWNER, MACHINE = "agentrl.sandbox.owner_id", "agentrl.sandbox.machine"
_LINGER_S = 5.0
_PROGRAM = """
import asyncio, sys
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.docker import DockerSettings

async def main():
    spec = SandboxSpec("docker", image=sys.argv[2], docker=DockerSettings(host=sys.argv[1], max_sandboxes=4))
    code = "import os, time\\nif os.fork() == 0: os.setsid()\\nopen('started', 'w').close()\\ntime.sleep(600)"
    async with spec.build() as sandbox, spec.build() as other:
        await asyncio.gather(sandbox.run(code, timeout_s=600), other.run(code, timeout_s=600), say())

async def say():
    await asyncio.sleep(0.5)
    print("running", flush=True)

asyncio.run(main())
"""  # noqa: E501


@pytest.fixture
def owner(settings: DockerSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that runs code in a container."""
    assert settings.host is not None
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, settings.host, LOCAL_PYTHON],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"running\n"
    yield process
    process.kill()
    process.stdout.close()
    process.wait()


def containers_of(client: docker.DockerClient, pid: int) -> list[str]:
    return [
        found["Id"]
        for found in client.api.containers(all=True, filters={"label": OWNER})
        if found["Labels"][OWNER].startswith(f"{pid}-")
    ]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_owner_killed_in_mid_run_leaves_no_container(
    owner: subprocess.Popen[bytes], client: docker.DockerClient, how: signal.Signals
) -> None:
    assert containers_of(client, owner.pid)
    owner.send_signal(how)
    owner.wait()
    until(lambda: containers_of(client, owner.pid) == [])


def test_a_closed_host_leaves_no_container(
    spec: SandboxSpec, client: docker.DockerClient
) -> None:
    asyncio.run(_run_once(spec))
    assert containers_of(client, os.getpid())
    close_servers()
    until(lambda: containers_of(client, os.getpid()) == [])


async def _run_once(spec: SandboxSpec) -> None:
    async with spec.build() as sandbox:
        assert (await sandbox.run("print(1)")).stdout == b"1\n"


def left_behind(
    client: docker.DockerClient, owner: Owner, machine: str = socket.gethostname()
) -> str:
    """A container that was made and never started, so that it has no lifeline."""
    labels = {OWNER: str(owner), MACHINE: machine}
    return str(
        client.api.create_container(LOCAL_PYTHON, ["sleep", "600"], labels=labels)["Id"]
    )


def test_only_what_a_dead_process_of_this_machine_left_is_reaped(
    settings: DockerSettings, client: docker.DockerClient
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    now = Owner.current()
    dead = Owner(ended.pid, 1, now.namespace, now.boot)
    ended.wait()
    earlier = Owner(now.pid, now.started - 1, now.namespace, now.boot)
    kept = [
        left_behind(client, now),
        left_behind(client, dead, machine="another-machine"),
        left_behind(
            client, Owner(dead.pid, 1, now.namespace + 1, now.boot)
        ),  # of another container's processes
    ]
    try:
        gone = [left_behind(client, dead), left_behind(client, earlier)]
        removed = remove_orphaned_containers(settings)
        there = {found["Id"] for found in client.api.containers(all=True)}
        assert not there & set(gone)
        assert there >= set(kept)
        assert [any(one[:12] in line for line in removed) for one in (*gone, *kept)] == [
            True
        ] * 2 + [False] * 3
    finally:
        for container in kept:
            client.api.remove_container(container, force=True)


def test_the_next_host_reaps_by_itself(
    spec: SandboxSpec, client: docker.DockerClient
) -> None:
    now = Owner.current()
    orphan = left_behind(client, Owner(now.pid, now.started - 1, now.namespace, now.boot))
    close_servers()
    asyncio.run(_run_once(spec))
    assert orphan not in {found["Id"] for found in client.api.containers(all=True)}


@pytest.mark.slow
async def test_an_engine_restarted_in_mid_run_is_a_failure_that_may_be_retried(
    dockerd: str, tmp_path: Path
) -> None:
    folder = Path(os.path.realpath(tmp_path)) / "e"
    folder.mkdir()
    engine = Engine(folder)
    engine.start()
    try:
        settings = DockerSettings(host=engine.host, max_sandboxes=2)
        await asyncio.to_thread(prepare, [LOCAL_PYTHON], settings)
        spec = SandboxSpec("docker", image=LOCAL_PYTHON, docker=settings)
        sandbox = spec.build()
        await sandbox.run("pass")
        running = asyncio.create_task(
            sandbox.run("import time; time.sleep(100)", timeout_s=100)
        )
        await asyncio.sleep(0.2)
        await asyncio.to_thread(engine.stop)
        with pytest.raises(SandboxError) as failure:
            await running
        assert failure.value.retryable
        with pytest.raises(
            SandboxError, match="answered before and does not now"
        ) as failure:
            await spec.build().run("pass")
        assert failure.value.retryable
        await asyncio.to_thread(engine.start)
        async with spec.build() as another:
            assert (await another.run("print(1)")).stdout == b"1\n"
    finally:
        close_servers()
        engine.stop()
