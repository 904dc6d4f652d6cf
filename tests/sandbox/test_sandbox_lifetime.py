"""Who ends what: owners that die, hosts that die, runs that are given up."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import BackendReport, Limits, SandboxSpec
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from benchmarks.sandboxes.machine import living
from tests.kit.waiting import DEADLINE_S, is_alive, until, until_async

OWNER = """
import asyncio, os, sys, time
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.forkserver.hosts import _servers

async def main(backend, way, marker):
    sandbox = SandboxSpec(backend).build()
    await sandbox.run("pass")
    print(*[f"{server.facts['pid']}:{server.facts['base']}" for server in _servers.values()], flush=True)
    script = f"(setsid sh -c 'sleep 4321; : {marker}' &) ; sleep 4321; : {marker}"
    task = asyncio.create_task(sandbox.run(argv=["sh", "-c", script], timeout_s=600))
    if way == "forked" and os.fork() == 0:  # a child that holds copies of the owner's sockets
        time.sleep(30)
        os._exit(0)
    await (asyncio.to_thread(sys.stdin.readline) if way == "leaves" else task)

asyncio.run(main(*sys.argv[1:]))
"""  # noqa: E501


@pytest.mark.invariant
@pytest.mark.parametrize("way", ["killed", "forked", "leaves"])
@pytest.mark.parametrize("backend", ["landlock", "unsafe"])
def test_nothing_survives_its_owner(
    backend: str, way: str, landlock: BackendReport
) -> None:
    marker = f"marker-{os.getpid()}-{os.urandom(4).hex()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, backend, way, marker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        hosts = dict(word.decode().split(":") for word in owner.stdout.readline().split())
        assert hosts
        until(lambda: len(living(f": {marker}")) == 2)
        if way == "leaves":
            owner.stdin.close()
        else:
            owner.send_signal(signal.SIGKILL)
        owner.wait(DEADLINE_S)
        until(lambda: not living(f": {marker}") and not any(map(is_alive, hosts)))
        assert not any(map(os.path.exists, hosts.values())), "a folder was left behind"
    finally:
        owner.kill()
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
        for pid in living(marker):
            os.kill(pid, signal.SIGKILL)


async def test_a_run_that_is_killed_is_the_sandboxs_failure_not_the_codes(
    spec: SandboxSpec,
) -> None:
    sandbox = spec.build()
    await sandbox.run("pass")
    task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
    await asyncio.wait([task], timeout=0.2)
    sandbox.kill_now()
    with pytest.raises(SandboxError) as failure:
        await task
    assert failure.value.retryable
    await sandbox.reset()
    assert (await sandbox.run("print(1)")).stdout == b"1\n"
    await sandbox.close()


async def test_a_closed_sandbox_refuses_until_it_is_reset(spec: SandboxSpec) -> None:
    sandbox = spec.build()
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("print(1)")
    await sandbox.reset()
    assert (await sandbox.run("print(1)")).status == "ok"
    await sandbox.close()


async def test_a_host_that_dies_is_a_retryable_failure_and_the_next_sandbox_gets_another_host(
    landlock: BackendReport,
) -> None:
    servers: list[ForkServer] = []

    def server() -> ForkServer:
        if not servers or servers[-1].ended:
            servers.append(ForkServer(HostSettings(confine=True)))
        return servers[-1]

    sandbox = ForkedSandbox(server, Limits())
    await sandbox.run("pass")
    task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
    await asyncio.wait([task], timeout=0.2)
    os.kill(servers[0].facts["pid"], signal.SIGKILL)
    with pytest.raises(SandboxError) as failure:
        await task
    assert failure.value.retryable
    other = ForkedSandbox(server, Limits())
    assert (await other.run("print(1)")).stdout == b"1\n"
    await other.close()
    for started in servers:
        await asyncio.to_thread(started.close)
    assert [
        started.facts["base"]
        for started in servers
        if os.path.exists(started.facts["base"])
    ] == []


async def test_an_opening_that_is_given_up_and_then_fails_is_told_by_nobody(
    landlock: BackendReport,
) -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))

    async def given_up() -> None:
        server = ForkServer(HostSettings(confine=True))
        await ForkedSandbox(lambda: server, Limits()).run("pass")
        os.kill(server.facts["pid"], signal.SIGSTOP)
        sandbox = ForkedSandbox(lambda: server, Limits())
        task = asyncio.create_task(sandbox.run("pass"))
        slot = await until_async(lambda: sandbox._slot)
        failed = threading.Event()
        slot.opened.add_done_callback(lambda _: failed.set())
        task.cancel()
        await asyncio.wait([task])
        os.kill(server.facts["pid"], signal.SIGKILL)
        await until_async(failed.is_set)
        await asyncio.to_thread(server.close)

    await given_up()
    gc.collect()  # asyncio tells of an error nobody read when its future goes
    assert told == []


async def test_a_run_that_is_given_up_before_its_turn_does_not_take_its_time(
    spec: SandboxSpec,
) -> None:
    async with spec.build() as sandbox:
        await sandbox.run("pass")
        first, second = (
            asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
            for _ in range(2)
        )
        await asyncio.wait([first, second], timeout=0.2)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        async with asyncio.timeout(DEADLINE_S):
            assert (await sandbox.run("print(1)")).stdout == b"1\n"


async def test_one_sandbox_serves_several_threads_and_event_loops(
    spec: SandboxSpec,
) -> None:
    sandbox = spec.build()
    seen: list[bytes] = []

    def run_in_a_loop_of_its_own(number: int) -> None:
        seen.append(asyncio.run(sandbox.run(f"print({number})")).stdout)

    threads = [
        threading.Thread(target=run_in_a_loop_of_its_own, args=(number,))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert sorted(seen) == [b"0\n", b"1\n", b"2\n", b"3\n"]
    await sandbox.close()


def own_threads() -> int:
    """Threads of this process but asyncio's pool, which grows to its own size with use."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


async def test_runs_leave_no_descriptor_and_no_thread_in_the_owner(
    spec: SandboxSpec,
) -> None:
    async def episode() -> None:
        async with spec.build() as sandbox:
            await asyncio.gather(*(sandbox.run("print(1)") for _ in range(4)))

    await episode()
    before = len(os.listdir("/proc/self/fd")), own_threads()
    for _ in range(20):
        await episode()
    after = len(os.listdir("/proc/self/fd")), own_threads()
    assert after[0] <= before[0] + 1  # closing is told on the I/O thread
    assert after[1] <= before[1]
