from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import docker
import pytest

from agentrl.errors import ConfigError, MachineError, SandboxError
from agentrl.sandbox import Limits, SandboxSpec
from agentrl.sandbox.backends import measure
from agentrl.sandbox.conformance import CHECKS, check_sandbox
from agentrl.sandbox.docker.backend import host_settings
from agentrl.sandbox.forkserver.hosts import close_servers, shared_server
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from agentrl.sandbox.owner_id import Owner

pytestmark = pytest.mark.docker

LABEL = "agentrl.sandbox.owner_id"
Make = Callable[..., SandboxSpec]


def container_of(spec: SandboxSpec, client: docker.DockerClient) -> Any:
    """The container of this process whose sandboxes are as many as the spec says."""
    (container,) = (
        found
        for found in client.containers.list(filters={"label": f"{LABEL}={Owner.current()}"})
        if sum(path.startswith("/sandbox/") for path in found.attrs["HostConfig"]["Tmpfs"])
        == spec.docker.max_sandboxes
    )
    return container


@pytest.fixture
def own(spec: SandboxSpec) -> Iterator[Make]:
    """Specs whose containers nothing else shares: each has a number of sandboxes of its own."""
    sizes = itertools.count(2)

    def make(**changes: Any) -> SandboxSpec:
        return spec.replace(
            docker=spec.docker.replace(max_sandboxes=next(sizes), **changes)
        )

    close_servers()
    yield make
    close_servers()


async def test_the_container_is_hardened(own: Make, client: docker.DockerClient) -> None:
    spec = own()
    async with spec.build() as sandbox:
        await sandbox.run("pass")
        attributes = container_of(spec, client).attrs
    config = attributes["HostConfig"]
    assert config["NetworkMode"] == "none"
    assert config["ReadonlyRootfs"] is True
    assert config["Privileged"] is False
    assert config["IpcMode"] in ("private", "shareable")  # podman's word for its own
    assert config["PidMode"] in ("", "private")
    assert config["Memory"] == config["MemorySwap"] > 0
    assert 0 < config["PidsLimit"] < 10_000
    assert config["AutoRemove"] is True
    assert config["LogConfig"]["Type"] == "none"
    assert not config["Binds"]
    assert all(
        "size=" in options and "nosuid" in options for options in config["Tmpfs"].values()
    )
    assert not [mount for mount in attributes["Mounts"] if mount["Type"] == "bind"]


async def test_the_first_process_has_few_capabilities_and_cannot_gain_any(
    own: Make, client: docker.DockerClient
) -> None:
    spec = own()
    async with spec.build() as sandbox:
        await sandbox.run("pass")
        lines = (
            container_of(spec, client)
            .exec_run(["cat", "/proc/1/status"])
            .output.decode()
            .splitlines()
        )
    status = dict(line.split(":\t", 1) for line in lines)
    # CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID
    few = sum(1 << number for number in (0, 1, 3, 5, 6, 7))
    assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == few
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


async def test_the_owners_environment_does_not_reach_the_container(
    own: Make, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNER_SECRET", "hunter2")
    spec = own()
    async with spec.build() as sandbox:
        await sandbox.run("pass")
        container = container_of(spec, client)
        inside = container.exec_run(["cat", "/proc/1/environ"]).output
    assert b"hunter2" not in inside
    assert "hunter2" not in str(container.attrs)


async def test_each_sandbox_has_a_file_system_of_its_own(own: Make) -> None:
    spec = own().replace(limits=Limits(disk_bytes=8 * 2**20, file_bytes=8 * 2**20))
    fill = "import os\nfor n in range(64):\n    with open(f'f{n}', 'wb') as file: file.write(bytes(2**20))"  # noqa: E501
    async with spec.build() as full, spec.build() as other:
        result = await full.run(fill, limits=Limits())
        assert b"No space left on device" in result.stderr
        assert (await other.run("open('f', 'wb').write(bytes(2**20))")).status == "ok"


async def test_the_files_of_a_sandbox_are_bounded_in_number(own: Make) -> None:
    spec = own().replace(limits=Limits(max_files=500))
    if "disk" not in spec.check().held:
        pytest.skip("this engine does not bound the number of files")
    async with spec.build() as sandbox:
        result = await sandbox.run(
            "for n in range(1000): open(str(n), 'w').close()", limits=Limits()
        )
        assert b"No space left on device" in result.stderr
        assert len(await sandbox.list_files()) < 500


async def test_sandboxes_beyond_the_containers_number_are_refused_and_their_place_is_given_again(
    own: Make,
) -> None:
    spec = own()
    boxes = [spec.build() for _ in range(spec.docker.max_sandboxes)]
    for box in boxes:
        await box.run("pass")
    with pytest.raises(SandboxError, match="sandboxes are open already"):
        await spec.build().run("pass")
    await boxes.pop().close()
    async with spec.build() as sandbox:
        assert (await sandbox.run("print(1)")).stdout == b"1\n"
    for box in boxes:
        await box.close()


async def test_resting_interpreters_at_their_limit_of_threads_leave_room_for_all_others(
    own: Make,
) -> None:
    # one process a sandbox and one run at its limit would be 8 + 16 of the container's own, far
    # below 8 * (1 + 16)
    # of which each thread reserves 64 MiB
    limits = Limits(processes=16, memory_bytes=2**32)
    spec = own().replace(limits=limits, max_executing=1, persist="interpreter")
    spec = spec.replace(docker=spec.docker.replace(max_sandboxes=8))
    rest = """
import threading
threads = [threading.Thread(target=threading.Event().wait, daemon=True) for _ in range(14)]
for thread in threads: thread.start()
print(threading.active_count())
"""
    async with contextlib.AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(spec.build()) for _ in range(8)]
        said = [(await box.run(rest)).stdout for box in boxes]
        assert said == [b"15\n"] * 8
        again = [(await box.run("print(len(threads))")).stdout for box in boxes]
        assert again == [b"14\n"] * 8


async def test_large_data_travels_both_ways_while_others_run(spec: SandboxSpec) -> None:
    data = bytes(range(256)) * 2**17  # 32 MiB

    async def move() -> bytes:
        async with spec.build() as sandbox:
            await sandbox.write_file("data", data)
            return await sandbox.read_file("data")

    async def work(number: int) -> list[bytes]:
        async with spec.build() as sandbox:
            return [
                (await sandbox.run(f"print({number}, {turn})")).stdout for turn in range(10)
            ]

    moved, *said = await asyncio.gather(move(), *(work(number) for number in range(4)))
    assert moved == data
    assert said == [
        [f"{number} {turn}\n".encode() for turn in range(10)] for number in range(4)
    ]


async def test_a_container_killed_in_mid_run_is_a_failure_that_may_be_retried(
    own: Make, client: docker.DockerClient
) -> None:
    spec = own()
    sandbox = spec.build()
    await sandbox.run("pass")
    running = asyncio.create_task(sandbox.run("import time; time.sleep(60)", timeout_s=60))
    await asyncio.sleep(0.2)
    container_of(spec, client).kill()
    with pytest.raises(SandboxError) as failure:
        await running
    assert failure.value.retryable
    async with spec.build() as another:
        assert (await another.run("print(1)")).stdout == b"1\n"
    with pytest.raises(SandboxError):
        await sandbox.close()


async def test_what_killed_a_container_is_said(
    own: Make, client: docker.DockerClient
) -> None:
    spec = own()
    sandbox = spec.build()
    await sandbox.run("pass")
    container_of(spec, client).kill()
    with pytest.raises(
        SandboxError,
        match=r"its container was killed, by its limit DockerSettings\.memory_bytes",
    ):
        await sandbox.close()


def test_a_missing_runtime_is_named(own: Make) -> None:
    with pytest.raises(
        MachineError,
        match=r"DockerSettings\.runtime='no-such': the engine has no such runtime",
    ):
        own(runtime="no-such").check()


def test_a_container_smaller_than_one_run_is_refused(own: Make) -> None:
    with pytest.raises(ConfigError, match=r"DockerSettings\.memory_bytes=\d+ is below"):
        own(memory_bytes=256 * 2**20).build()


async def test_a_sandbox_after_its_host_was_recycled_is_in_another_container(
    own: Make,
) -> None:
    spec = own().replace(recycle_after=2)
    async with spec.build() as first:
        for _ in range(3):
            assert (await first.run("print(1)")).stdout == b"1\n"
        async with spec.build() as second:
            assert (await second.run("print(2)")).stdout == b"2\n"
        assert (await first.run("print(3)")).stdout == b"3\n"


@pytest.mark.parametrize(
    ("num_bytes", "limit"),
    [(2**29, 2**30), (250 * 2**20, 256 * 2**20)],
    ids=["half", "nearly all"],
)
async def test_a_container_out_of_memory_is_no_fault_of_the_code(
    own: Make, num_bytes: int, limit: int
) -> None:
    limits = Limits(memory_bytes=64 * 2**20)
    spec = own(memory_bytes=256 * 2**20).replace(limits=limits)
    async with spec.build() as sandbox:
        await sandbox.run("pass")
        with pytest.raises(
            SandboxError, match="its container or the machine is full"
        ) as failure:
            await sandbox.run(
                f"x = bytearray({num_bytes})", limits=Limits(memory_bytes=limit)
            )
        assert failure.value.retryable
    async with spec.build() as another:
        assert (await another.run("print(1)")).stdout == b"1\n"


async def test_a_run_beside_one_that_spent_the_containers_memory_stands(own: Make) -> None:
    spec = own(memory_bytes=256 * 2**20).replace(limits=Limits(memory_bytes=64 * 2**20))
    async with spec.build() as greedy, spec.build() as other:
        await asyncio.gather(greedy.run("pass"), other.run("pass"))
        beside = asyncio.create_task(
            other.run("import time\ntime.sleep(2)\nprint('whole')")
        )
        with pytest.raises(SandboxError, match="its container or the machine is full"):
            await greedy.run(
                "x = bytearray(2**29)\nprint(len(x))", limits=Limits(memory_bytes=2**30)
            )
        assert (await beside).stdout == b"whole\n"


async def test_a_run_over_its_own_limit_is_the_codes_fault_in_a_small_container_too(
    own: Make,
) -> None:
    spec = own(memory_bytes=224 * 2**20).replace(limits=Limits(memory_bytes=64 * 2**20))
    async with spec.build() as sandbox:
        assert (await sandbox.run("x = bytearray(2**29)")).status == "oom"
        assert (await sandbox.run("print(1)")).stdout == b"1\n"


@pytest.mark.wide
async def test_without_landlock_the_container_keeps_its_guarantees(own: Make) -> None:
    settings = replace(host_settings(own()), abi_cap=0)

    def build() -> ForkedSandbox:
        return ForkedSandbox(lambda: shared_server(settings), Limits())

    async with build() as sandbox:
        held = await measure(sandbox)
        places = "import os\nprint([p for p in ('/dev/shm', '/dev/mqueue', '/tmp', '/run') if os.access(p, os.W_OK)])"  # noqa: E501
        assert (await sandbox.run(places)).stdout == b"[]\n"
    # the image's own files can be read, as the suite's attacks on `files` and `secrets` see
    assert held >= {"network", "processes", "kernel", "memory", "user"}
    checks = [
        check.name for check in CHECKS if check.guarantee in held - {"files", "secrets"}
    ]
    results = await check_sandbox(build, guarantees=held, only=checks)
    assert [result for result in results if not result.passed] == []


async def test_what_a_sandbox_leaves_takes_no_room_of_the_next(own: Make) -> None:
    spec = own()
    spec = spec.replace(docker=spec.docker.replace(max_sandboxes=1))
    room = "import os\nprint(os.statvfs('.').f_bfree)"
    async with spec.build() as sandbox:
        fresh = int((await sandbox.run(room)).stdout)
        leave = "import os\nos.mkdir('d')\nopen('d/f', 'wb').write(bytes(2**22))\nos.chmod('d', 0)\nos.chmod('.', 0)"  # noqa: E501
        assert (await sandbox.run(leave)).status == "ok"
        assert int((await sandbox.run(room)).stdout) <= fresh - 2**22 // 4096
    async with spec.build() as following:
        # blocks of what is still on its way out
        assert int((await following.run(room)).stdout) > fresh - 16
