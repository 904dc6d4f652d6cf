"""What is left of bubblewrap when its owner, or bubblewrap itself, is killed in the middle of a
run: nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import BackendReport, Limits
from agentrl.sandbox.forkserver.local import BubblewrapHost, BubblewrapLauncher
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from benchmarks.sandboxes.machine import descendants, living
from tests.kit.waiting import DEADLINE_S, is_alive, until

OWNER = """
import asyncio, os, sys, time
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.forkserver.hosts import _servers

async def main(marker, way):
    sandbox = SandboxSpec("bubblewrap").build()
    await sandbox.run("pass")
    (server,) = _servers.values()
    print(server._host.pid, flush=True)
    script = f"(setsid sh -c 'sleep 4321; : {marker}' &) ; sleep 4321; : {marker}"
    task = asyncio.create_task(sandbox.run(argv=["sh", "-c", script], timeout_s=600))
    if way == "forked" and os.fork() == 0:  # a child that holds copies of the owner's sockets
        time.sleep(30)
        os._exit(0)
    await asyncio.wait([task])

asyncio.run(main(*sys.argv[1:]))
"""
SERVERS = HostSettings(confine=True, launcher=BubblewrapLauncher())


def mounts_of_sandboxes() -> list[str]:
    """Where this machine shows a place at which a sandbox, or what starts one, mounts something."""
    places = [
        line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()
    ]
    return [
        place
        for place in places
        if place.startswith("/sandbox") or place in ("/mnt", "/media", "/srv", "/tmp")
    ]


@pytest.mark.parametrize("way", ["killed", "forked", "with its host"])
def test_no_process_and_no_mount_survives_its_owner(
    way: str, bubblewrap: BackendReport
) -> None:
    before = mounts_of_sandboxes()
    marker = f"marker-{os.getpid()}-{os.urandom(4).hex()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, marker, way], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    processes: list[int] = []
    try:
        host = int(owner.stdout.readline())
        until(lambda: len(living(f": {marker}")) == 2)
        assert mounts_of_sandboxes() == before, "what a sandbox mounts shows nowhere else"
        processes = [host, *descendants(host)]
        owner.kill()
        if way == "with its host":
            os.kill(host, signal.SIGKILL)
        owner.wait(DEADLINE_S)
        until(lambda: not any(map(is_alive, processes)))
        assert living(f": {marker}") == []
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        for pid in {*filter(is_alive, processes), *living(marker)}:
            os.kill(pid, signal.SIGKILL)


async def test_a_host_that_dies_is_a_retryable_failure(bubblewrap: BackendReport) -> None:
    server = ForkServer(SERVERS)
    assert isinstance(server._host, BubblewrapHost)
    sandbox = ForkedSandbox(lambda: server, Limits())
    await sandbox.run("pass")
    task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
    await asyncio.wait([task], timeout=0.2)
    os.kill(server._host.pid, signal.SIGKILL)
    with pytest.raises(SandboxError) as failure:
        await task
    assert failure.value.retryable
    await asyncio.to_thread(server.close)


async def test_a_sandbox_that_is_closed_leaves_no_process(
    bubblewrap: BackendReport,
) -> None:
    server = ForkServer(SERVERS)
    assert isinstance(server._host, BubblewrapHost)
    idle = set(descendants(server._host.pid))
    sandbox = ForkedSandbox(lambda: server, Limits())
    await sandbox.run(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
    )
    await sandbox.run("x = 1", persist="interpreter")
    assert len(descendants(server._host.pid)) == len(idle) + 3, (
        "a slot, an interpreter, its namespace's first process"
    )
    await sandbox.close()
    assert set(descendants(server._host.pid)) == idle
    await asyncio.to_thread(server.close)


async def test_hosts_hold_blocks_of_uids_that_are_not_the_same(
    bubblewrap: BackendReport,
) -> None:
    if "user" not in bubblewrap.held:
        pytest.skip("a uid for each sandbox is missing here: not root")
    servers = [ForkServer(SERVERS) for _ in range(2)]
    sandboxes = [
        ForkedSandbox(lambda server=server: server, Limits())
        for server in (*servers, servers[0])
    ]
    seen = {
        (await sandbox.run("import os\nprint(os.getuid())")).stdout for sandbox in sandboxes
    }
    assert len(seen) == 3
    for sandbox in sandboxes:
        await sandbox.close()
    for server in servers:
        await asyncio.to_thread(server.close)


async def test_each_run_has_pids_ipc_and_mounts_of_its_own_and_each_sandbox_users(
    bubblewrap: BackendReport,
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may look at the namespaces of a run")
    server = ForkServer(SERVERS)
    assert isinstance(server._host, BubblewrapHost)
    sandboxes = [ForkedSandbox(lambda: server, Limits()) for _ in range(2)]
    held: list[int] = []

    async def namespaces(sandbox: ForkedSandbox) -> dict[str, int]:
        marker = f"marker-{os.urandom(4).hex()}"
        task = asyncio.create_task(
            sandbox.run(argv=["sh", "-c", f"sleep 4321; : {marker}"], timeout_s=60)
        )
        while not (pids := living(marker)) and not task.done():
            await asyncio.wait([task], timeout=0.02)
        kinds = ("user", "pid", "ipc", "mnt", "net", "uts", "cgroup")
        for (
            kind
        ) in kinds:  # held, so that no later one gets the number of one that has ended
            held.append(os.open(f"/proc/{pids[0]}/ns/{kind}", os.O_RDONLY))
        found = {
            kind: os.fstat(fd).st_ino
            for kind, fd in zip(kinds, held[-len(kinds) :], strict=True)
        }
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    first, second, other = [
        await namespaces(sandbox) for sandbox in (sandboxes[0], *sandboxes)
    ]
    own = {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in first}
    try:
        assert {kind for kind in first if first[kind] == own[kind]} == set()
        assert {kind for kind in first if first[kind] == second[kind]} == {
            "user",
            "net",
            "uts",
            "cgroup",
        }
        assert {kind for kind in first if first[kind] == other[kind]} == {
            "net",
            "uts",
            "cgroup",
        }
    finally:
        for fd in held:
            os.close(fd)
        for sandbox in sandboxes:
            await sandbox.close()
        await asyncio.to_thread(server.close)
