"""Memory cgroups of sandboxes: what they bound, who pays, and that none is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.sandbox import BackendReport, Limits, SandboxSpec
from agentrl.sandbox.conformance.bombs import BUFFERS_OF_MANY
from agentrl.sandbox.forkserver import cgroups
from agentrl.sandbox.forkserver.launcher import LocalLauncher
from agentrl.sandbox.forkserver.local import BubblewrapLauncher
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from agentrl.sandbox.orphan_cleanup import remove_orphans
from tests.kit.waiting import until_async

BACKENDS = ("landlock", "bubblewrap")
LIMITS = Limits(wall_s=30, memory_bytes=96 * 2**20, processes=16)

RESTING = "held = bytearray(80 * 2**20)\nprint(len(held))"


@pytest.fixture
def node() -> cgroups.Node:
    found = cgroups.find_node()
    if found is None:
        pytest.skip("no memory cgroup can be made here")
    return found


def cgroups_of_this_process(node: cgroups.Node) -> list[str]:
    return [
        name
        for name in os.listdir(node.path)
        if name.startswith(f"agentrl-sandbox-{os.getpid()}-")
    ]


@pytest.fixture
def server(node: cgroups.Node, landlock: BackendReport) -> Iterator[ForkServer]:
    server = ForkServer(HostSettings(confine=True))
    yield server
    server.close()


@pytest.mark.wide
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_cgroup", [True, False])
async def test_buffers_of_many_processes_end_the_run_and_no_other(
    backend: str,
    with_cgroup: bool,
    landlock: BackendReport,
    monkeypatch: pytest.MonkeyPatch,
    request: Any,
) -> None:
    if with_cgroup:
        request.getfixturevalue("node")
    else:
        monkeypatch.setattr(cgroups, "find_node", lambda: None)
    launcher = BubblewrapLauncher() if backend == "bubblewrap" else LocalLauncher()
    server = ForkServer(HostSettings(confine=True, launcher=launcher))
    async with (
        ForkedSandbox(lambda: server, LIMITS) as sandbox,
        ForkedSandbox(lambda: server, LIMITS) as neighbour,
    ):
        result, beside = await asyncio.gather(
            sandbox.run(BUFFERS_OF_MANY),
            neighbour.run("import time\ntime.sleep(2)\nprint('beside')"),
        )
        assert (result.status, result.stdout) == ("oom", b"")
        assert beside.stdout == b"beside\n"
        assert ("a memory cgroup" in sandbox.notes) == with_cgroup
        assert (await sandbox.run("print(len(bytearray(80 * 2**20)))")).status == "ok"
    await asyncio.to_thread(server.close)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_processes_with_a_few_sockets_each_are_no_bomb(
    backend: str, landlock: BackendReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "find_node", lambda: None)
    code = """
import os, socket, time
pairs = [socket.socketpair() for _ in range(20)]
for _ in range(20):
    if os.fork() == 0:
        time.sleep(1)
        os._exit(0)
for _ in range(20): os.wait()
print('done')
"""
    launcher = BubblewrapLauncher() if backend == "bubblewrap" else LocalLauncher()
    server = ForkServer(HostSettings(confine=True, launcher=launcher))
    async with ForkedSandbox(lambda: server, Limits()) as sandbox:
        assert (await sandbox.run(code)).stdout == b"done\n"
    await asyncio.to_thread(server.close)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_the_limits_allow_is_there_beside_files_and_a_resting_interpreter(
    backend: str, node: cgroups.Node, landlock: BackendReport
) -> None:
    limits = Limits(
        wall_s=30, memory_bytes=96 * 2**20, disk_bytes=64 * 2**20, file_bytes=60 * 2**20
    )
    async with SandboxSpec(backend, require="none", limits=limits).build() as sandbox:
        assert (
            await sandbox.run("open('big', 'wb').write(bytes(56 * 2**20))")
        ).status == "ok"
        assert (await sandbox.run(RESTING, persist="interpreter")).status == "ok"
        result = await sandbox.run("held = bytearray(88 * 2**20)\nprint('held')")
        assert result.stdout == b"held\n", result
        result = await sandbox.run("print(len(held))", persist="interpreter")
        assert result.stdout == b"83886080\n", result


async def test_what_an_interpreter_is_handed_is_no_memory_to_hoard_in(
    landlock: BackendReport,
) -> None:
    keep = """
import os, socket
kept, receive = [], socket.recv_fds
def receive_and_keep(*args):
    got = receive(*args)
    kept.append(os.dup(got[1][3]))
    return got
socket.recv_fds = receive_and_keep
"""
    fill = """
for fill in (lambda: os.write(kept[0], bytes(2**20)), lambda: os.ftruncate(kept[0], 2**20)):
    try: fill()
    except PermissionError as error: print(error.strerror)
"""
    async with SandboxSpec("landlock", require="none").build() as sandbox:
        await sandbox.run(keep, persist="interpreter")
        result = await sandbox.run(fill, persist="interpreter")
    assert result.stdout == b"Operation not permitted\n" * 2, result


async def test_a_run_is_in_a_cgroup_and_its_slot_is_not(
    node: cgroups.Node, server: ForkServer
) -> None:
    async with ForkedSandbox(lambda: server, Limits()) as sandbox:
        before = set(cgroups_of_this_process(node))
        run = asyncio.create_task(sandbox.run("import time\ntime.sleep(30)"))
        (name,) = await until_async(lambda: [*set(cgroups_of_this_process(node)) - before])
        (inside,) = await until_async(lambda: read_pids(f"{node.path}/{name}/cgroup.procs"))
        with open(f"/proc/{inside}/stat") as file:
            slot = int(file.read().rpartition(")")[2].split()[1])
        assert slot in read_pids(f"{node.path}/cgroup.procs")
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_a_sandbox_takes_the_cgroup_of_one_that_ended_and_none_outlives_the_host(
    node: cgroups.Node, server: ForkServer
) -> None:
    before = set(cgroups_of_this_process(node))
    for _ in range(3):
        async with ForkedSandbox(lambda: server, Limits()) as sandbox:
            await sandbox.run("pass")
    assert len(set(cgroups_of_this_process(node)) - before) == 1
    await asyncio.to_thread(server.close)
    assert set(cgroups_of_this_process(node)) <= before


def test_version_2_wants_the_nearest_node_whose_children_have_the_memory_controller(
    tmp_path: Path,
) -> None:
    own = tmp_path / "user.slice" / "app.slice" / "run.scope"
    own.mkdir(parents=True)
    for folder, controllers in (
        (tmp_path, "cpu memory"),
        (own.parents[1], "memory pids"),
        (own.parent, "pids"),
    ):
        (folder / "cgroup.subtree_control").write_text(controllers)
    (own / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup").write_text("0::/user.slice/app.slice/run.scope\n")
    (tmp_path / "mountinfo").write_text(
        f"31 23 0:27 / {tmp_path} rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    found = list(cgroups.candidate_nodes(str(tmp_path)))
    assert found == [cgroups.Node(str(own.parents[1]), 2), cgroups.Node(str(tmp_path), 2)]


def test_version_1_takes_its_own_also_where_a_part_of_the_hierarchy_is_mounted(
    tmp_path: Path,
) -> None:
    (tmp_path / "cgroup").write_text("5:cpu:/\n4:memory:/box/inner\n0::/\n")
    lines = [
        "30 23 0:26 /box /mnt/cpu rw - cgroup cgroup rw,cpu",
        "31 23 0:27 /box /mnt/memory rw - cgroup cgroup rw,memory",
    ]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    assert list(cgroups.candidate_nodes(str(tmp_path))) == [
        cgroups.Node("/mnt/memory/inner", 1)
    ]


def test_the_cgroup_of_a_dead_owner_is_removed(node: cgroups.Node) -> None:
    make = "import os\nfrom agentrl.sandbox.forkserver.cgroups import *\nCgroup(find_node())\nprint(os.getpid())"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", make], capture_output=True, text=True, check=True
    )
    left = f"agentrl-sandbox-{done.stdout.strip()}-"
    assert [name for name in os.listdir(node.path) if name.startswith(left)]
    assert [line for line in remove_orphans() if left in line and line.startswith("cgroup")]
    assert not [name for name in os.listdir(node.path) if name.startswith(left)]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_sandboxes_die_before_the_process_that_owns_them(
    backend: str, landlock: BackendReport
) -> None:
    async with SandboxSpec(backend, require="none").build() as sandbox:
        run = asyncio.create_task(sandbox.run("import time\ntime.sleep(30)"))
        with open("/proc/self/oom_score_adj") as file:
            own = int(file.read())
        scores = await until_async(
            lambda: [score for score in scores_below(os.getpid()) if score == 1000]
        )
        assert own < scores[0]
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def scores_below(pid: int) -> list[int]:
    from agentrl.sandbox.host import proc

    found = []
    for below in proc.descendants(pid):
        try:
            with open(f"/proc/{below}/oom_score_adj") as file:
                found.append(int(file.read()))
        except OSError:
            continue
    return found


def read_pids(path: str) -> list[int]:
    with open(path) as file:
        return [int(line) for line in file]
