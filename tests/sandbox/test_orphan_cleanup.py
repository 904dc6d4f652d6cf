"""What is left where owner and host are killed together, and that nothing of the living is
touched.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import BackendReport, Limits, SandboxSpec
from agentrl.sandbox.forkserver import hosts
from agentrl.sandbox.forkserver.launcher import FOLDER_PREFIX
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from agentrl.sandbox.orphan_cleanup import remove_orphans
from agentrl.sandbox.owner_id import Owner
from benchmarks.sandboxes.machine import living
from tests.kit.waiting import is_alive, until

OWNER = """
import asyncio, sys
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.forkserver.hosts import _servers

async def main():
    async with SandboxSpec("landlock").build() as sandbox:
        await sandbox.write_file("left", b"x" * 100)
        facts = next(iter(_servers.values())).facts
        print(facts["pid"], facts["base"], flush=True)
        await sandbox.run(sys.argv[1], timeout_s=600)

asyncio.run(main())
"""


@dataclass
class Running:
    owner: subprocess.Popen[bytes]
    host: int
    base: Path


def slots_of(pid: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


@contextmanager
def running(code: str = "while True: pass") -> Iterator[Running]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        pid, base = owner.stdout.readline().split()
        yield Running(owner, int(pid), Path(base.decode()))
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        remove_orphans()  # what a test let live


def test_a_host_that_was_stopped_when_its_owner_died_is_ended_with_its_sandboxes(
    landlock: BackendReport,
) -> None:
    with running() as run:
        until(lambda: bool(slots_of(run.host)))
        (slot,) = slots_of(run.host)
        for pid in (run.host, slot):  # nobody is left who could see the owner's end
            os.kill(pid, signal.SIGSTOP)
        run.owner.kill()
        run.owner.wait()
        removed = remove_orphans()
        until(lambda: not is_alive(run.host) and not is_alive(slot))
    assert any(f"process {run.host}" in line for line in removed)
    assert any(str(run.base) in line for line in removed)
    assert not run.base.exists()


def test_a_folder_whose_owner_and_host_are_dead_is_removed_and_logged(
    landlock: BackendReport, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as run:
        until(lambda: bool(slots_of(run.host)))
        everyone = [run.owner.pid, run.host, *slots_of(run.host)]
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        for pid in everyone:
            os.kill(pid, signal.SIGKILL)
        run.owner.wait()
        assert run.base.exists()
        hosts.remove_orphans_and_say()
    said = [
        r.getMessage()
        for r in caplog.records
        if vars(r)["event"] == "sandbox_orphan_removed"
    ]
    assert any(f"folder {run.base} of owner {run.owner.pid}-" in line for line in said)
    assert not run.base.exists()


def end_together(run: Running) -> list[int]:
    """Owner, host and slots at once, so that none sees the end of another; the slots."""
    slots = slots_of(run.host)
    everyone = [run.owner.pid, run.host, *slots]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in everyone:
            os.kill(pid, number)
    run.owner.wait()
    return slots


HIDES = """
import os, sys
for _ in range(2):  # no child of the slot's, no session of its own run's
    if os.fork():
        if _: os._exit(0)
        break
    os.setsid()
else:
    os.chdir("/")
    os.closerange(0, 256)
    sleep = "import time; time.sleep(600)"
    os.execve(sys.executable, ["python", "-I", "-S", "-c", sleep, "agentrl-sandbox-host", "OWNER", "MARKER"], {})
import time
time.sleep(600)
"""  # noqa: E501


def test_the_process_of_a_run_ends_with_its_slot(landlock: BackendReport) -> None:
    marker = f"marker-{os.urandom(6).hex()}"
    with running(
        f"import os\nos.execv('/bin/sh', ['sh', '-c', 'sleep 600; : {marker}'])"
    ) as run:
        # the owner's command line names it as well
        until(lambda: len(living(marker)) == 2)
        end_together(run)
        until(lambda: not living(marker))


def test_what_the_code_started_is_found_when_owner_and_host_were_killed_together(
    landlock: BackendReport,
) -> None:
    marker = f"marker-{os.urandom(6).hex()}"
    with running(
        HIDES.replace("MARKER", marker).replace("OWNER", str(Owner.current()))
    ) as run:
        until(lambda: len(living(marker)) == 2)
        end_together(run)
        (hidden,) = living(marker)
        removed = remove_orphans()
        assert living(marker) == []
    assert f"process {hidden} of a sandbox whose host is dead" in removed
    assert not run.base.exists()


def test_what_the_code_started_ends_with_its_sandbox_where_only_the_host_was_killed(
    landlock: BackendReport,
) -> None:
    server = ForkServer(HostSettings(confine=True))
    marker = f"marker-{os.urandom(6).hex()}"

    async def go() -> None:
        sandbox = ForkedSandbox(lambda: server, Limits())
        task = asyncio.create_task(
            sandbox.run(HIDES.replace("MARKER", marker), timeout_s=600)
        )
        while not living(marker):
            await asyncio.sleep(0.02)
        for pid in (*slots_of(server.facts["pid"]), server.facts["pid"]):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await task

    asyncio.run(go())
    server.close()
    assert living(marker) == []
    assert not os.path.exists(server.facts["base"])


def test_a_process_of_a_living_sandbox_is_left_alone(landlock: BackendReport) -> None:
    marker = f"marker-{os.urandom(6).hex()}"
    with running(HIDES.replace("MARKER", marker)) as run:
        until(lambda: len(living(marker)) == 2)
        removed = remove_orphans()
        assert len(living(marker)) == 2
        assert run.base.exists()
    assert not any("whose host is dead" in line for line in removed)


def test_a_living_run_is_left_alone(landlock: BackendReport) -> None:
    with running() as run:
        removed = remove_orphans()
        assert is_alive(run.host)
        assert run.base.exists()
    assert not any(str(run.base) in line for line in removed)


def test_what_names_no_owner_or_one_that_cannot_be_known_is_left_alone(
    tmp_path: Path,
) -> None:
    elsewhere = replace(Owner.current(), pid=2**22 + 1, namespace=1)
    folders = [
        Path(f"/tmp/{FOLDER_PREFIX}{name}-x") for name in (f"mine{os.getpid()}", elsewhere)
    ]
    try:
        for folder in folders:
            folder.mkdir()
        remove_orphans()
        assert all(folder.exists() for folder in folders)
    finally:
        for folder in folders:
            folder.rmdir()


def test_a_link_that_bears_a_dead_owners_name_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    link = Path(
        f"/tmp/{FOLDER_PREFIX}{replace(Owner.current(), boot='0' * 12)}-{os.getpid()}"
    )
    link.symlink_to(tmp_path)
    try:
        remove_orphans()
        assert (tmp_path / "kept").exists()
    finally:
        link.unlink()


def test_a_first_host_reaps_what_others_left(landlock: BackendReport) -> None:
    dead = replace(Owner.current(), boot="0" * 12)
    left = Path(f"/tmp/{FOLDER_PREFIX}{dead}-{os.getpid()}")
    left.mkdir()
    code = "import asyncio\nfrom agentrl.sandbox import SandboxSpec\n"
    code += "async def go():\n    async with SandboxSpec('unsafe').build() as s: await s.run('pass')\nasyncio.run(go())"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not left.exists()
    assert f"removed what a dead process left: folder {left}" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_hosts_command_line_names_its_owner(landlock: BackendReport) -> None:
    SandboxSpec("landlock").check()
    with running() as run:
        assert str(run.owner.pid).encode() in Path(f"/proc/{run.host}/cmdline").read_bytes()
