"""A server ends with whoever owns it, whatever is killed, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.engines.servers.orphan_cleanup import reap_servers
from agentrl.engines.servers.process import FOLDER_PREFIX, ServerProcess
from tests.kit.waiting import is_alive, until

# A server as far as processes go: a child in its session, one in a session of its own, one that
# lost its environment, shared memory that a tracker looks after, shared memory that nobody does,
# and a temporary file.
SERVER = """
import mmap, os, subprocess, sys, tempfile, time
from multiprocessing import shared_memory
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
family = [
    subprocess.Popen(sleep),
    subprocess.Popen(sleep, start_new_session=True),
    subprocess.Popen(sleep, env={}),
]
memory = shared_memory.SharedMemory(create=True, size=64)
file = open(f"/dev/shm/agentrl-test-{os.getpid()}", "wb+")
file.truncate(4096)
kept = mmap.mmap(file.fileno(), 4096)
left, path = tempfile.mkstemp()
print(memory.name, file.name, path, os.getpid(), *(one.pid for one in family), flush=True)
time.sleep(600)
"""
OWNER = """
import sys, time
from pathlib import Path
from agentrl.engines.servers.process import ServerProcess
import os
process = ServerProcess([sys.executable, "-c", sys.argv[1]], os.environ, Path(sys.argv[2]))
while True:
    time.sleep(0.1)
    process.exit_code
"""


class Family:
    """The processes of a server and its files, as it says them."""

    def __init__(self, log: Path) -> None:
        until(lambda: log.exists() and len(log.read_text().split()) == 7)
        memory, file, path, *pids = log.read_text().split()
        self.files = [Path("/dev/shm", memory.lstrip("/")), Path(file), Path(path)]
        self.pids = [int(pid) for pid in pids]
        assert all(file.exists() for file in self.files)
        assert all(is_alive(pid) for pid in self.pids)
        self.lifeline = parent(self.pids[0])

    def is_gone(self) -> bool:
        return not self.left()

    def was_looked_at(self) -> bool:
        """Whether the lifeline has noted what is in shared memory."""
        listing = self.files[2].with_name(".agentrl-shared-memory")
        return listing.exists() and str(self.files[1]) in listing.read_text()

    def left(self) -> list[str]:
        return [str(pid) for pid in self.pids if is_alive(pid)] + [
            str(file) for file in self.files if file.exists()
        ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def process(log: Path) -> Iterator[ServerProcess]:
    started = ServerProcess([sys.executable, "-c", SERVER], os.environ, log)
    yield started
    started.end()


@pytest.fixture
def owner(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", OWNER, SERVER, str(log)])
    yield started
    started.kill()
    started.wait()


def test_ending_a_server_ends_what_it_started(process: ServerProcess, log: Path) -> None:
    family = Family(log)
    process.end()
    assert family.is_gone(), family.left()
    assert process.exit_code == 0


def test_a_server_that_dies_takes_its_session_along(
    process: ServerProcess, log: Path
) -> None:
    family = Family(log)
    until(family.was_looked_at)
    os.kill(family.pids[0], signal.SIGKILL)
    until(lambda: process.exit_code is not None)
    assert process.exit_code == -signal.SIGKILL
    until(family.is_gone)


def test_the_lifeline_is_no_child_of_its_owner(process: ServerProcess, log: Path) -> None:
    assert parent(Family(log).lifeline) != os.getpid()


def test_a_server_ends_when_its_owner_is_killed(
    owner: subprocess.Popen[bytes], log: Path
) -> None:
    family = Family(log)
    owner.kill()
    until(family.is_gone)


def test_a_server_ends_when_its_lifeline_is_killed(
    process: ServerProcess, log: Path
) -> None:
    family = Family(log)
    until(family.was_looked_at)
    os.kill(family.lifeline, signal.SIGKILL)
    until(lambda: not is_alive(family.pids[0]))  # by the kernel
    until(lambda: process.exit_code is not None)
    assert process.exit_code == -signal.SIGKILL
    until(family.is_gone)


def test_a_lifeline_that_is_told_to_end_ends_its_server(
    process: ServerProcess, log: Path
) -> None:
    family = Family(log)
    os.kill(family.lifeline, signal.SIGTERM)
    until(family.is_gone)


@pytest.mark.slow
def test_what_is_left_when_owner_and_lifeline_are_killed_together_is_reaped(
    owner: subprocess.Popen[bytes], log: Path
) -> None:
    family = Family(log)
    until(family.was_looked_at)
    os.kill(family.lifeline, signal.SIGSTOP)  # neither sees the other's end
    owner.kill()
    os.kill(family.lifeline, signal.SIGKILL)
    owner.wait()
    until(lambda: not is_alive(family.pids[0]))
    removed = reap_servers()
    assert family.is_gone(), family.left()
    assert any("server of owner" in line and f"{owner.pid}-" in line for line in removed)


def test_servers_of_owners_that_live_are_left_alone(
    process: ServerProcess, log: Path
) -> None:
    family = Family(log)
    reap_servers()
    assert all(is_alive(pid) for pid in family.pids)
    assert process.exit_code is None


def test_no_folder_of_a_server_stays(process: ServerProcess, log: Path) -> None:
    own = f"{FOLDER_PREFIX}{os.getpid()}-*"
    family = Family(log)
    assert list(Path(tempfile.gettempdir()).glob(own))
    process.end()
    assert family.is_gone()
    assert not list(Path(tempfile.gettempdir()).glob(own))


def test_a_command_that_is_not_there_is_named_in_the_log(log: Path) -> None:
    process = ServerProcess(["/no/such/server"], os.environ, log)
    until(lambda: process.exit_code is not None)
    assert (process.exit_code, process.log_tail()) == (
        127,
        "/no/such/server: No such file or directory",
    )
    process.end()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
