"""Real servers end with whoever runs them, whichever process is killed, and leave nothing on the
machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.engines.servers import supervise
from agentrl.engines.servers.orphan_cleanup import reap_servers
from agentrl.engines.sglang.server_side import forking_launch
from agentrl.store import read_jsonl
from tests.engines.sglang.runs import CONFIG
from tests.kit.waiting import until
from tests.run.tiny_run import metrics

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

Driver = subprocess.Popen[bytes]


class Server:
    """The processes and files of the server of a run, as they were.

    Args:
        folder: of the test.
        model: that the run starts from.
        others: markers of servers that are not meant, such as those that ran before the test.
    """

    def __init__(self, folder: Path, model: Path, others: set[str]) -> None:
        # a server that is started again has its weights in the run directory
        own = (
            str(folder),
            str(model),
        )
        launched = [
            pid for pid in supervise.processes() if forking_launch.__file__ in words(pid)
        ]
        started = [
            pid for pid in launched if any(word.startswith(own) for word in words(pid))
        ]
        (self.marker,) = {supervise.marker_of(pid) for pid in started} - others - {""}
        self.owner = int(self.marker.split("-")[0])
        self.pids = supervise.server_processes(self.marker)
        (self.lifeline,) = (
            pid
            for pid in self.pids
            if any(word.endswith("/supervise.py") for word in words(pid))
        )
        self.folder = Path(supervise.folder_of(self.marker))
        opened = {path for pid in self.pids for path in open_files(pid)}
        self.shared = {path for path in opened if path.startswith("/dev/shm/")}
        known = (str(folder), str(model), str(self.folder))
        self.strewn = {
            path
            for path in opened
            if path.startswith("/tmp/") and not path.startswith(known)
        }

    def left(self) -> list[str]:
        files = [self.folder, *map(Path, self.shared)]
        own = [pid for pid in self.pids if supervise.marker_of(pid) == self.marker]
        return [str(pid) for pid in own] + [str(file) for file in files if file.exists()]


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for one in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(one.path))
    return {
        path for path in found if path.startswith("/") and not path.endswith(" (deleted)")
    }


@pytest.fixture
def others() -> set[str]:
    """Markers of the servers that other tests share."""
    return {supervise.marker_of(pid) for pid in supervise.processes()}


@pytest.fixture
def driver(tmp_path: Path, model: Path, python: str, others: set[str]) -> Iterator[Driver]:
    """A run in Ray actors that trains on a server of its own for ever."""
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    own = (
        f"run.dir={tmp_path / 'run'}",
        f"model.path={model}",
        f"rollout.sglang.python={python}",
    )
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(tmp_path / "config.yaml"),
        *own,
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "placement.mode=ray", "train.steps=1000", "checkpoint.every=null"],
            stdout=log,
            stderr=log,
        )
    try:
        started = lambda: bool(metrics(tmp_path / "run")) or process.poll() is not None  # noqa: E731
        until(started, (tmp_path / "log").read_text)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()
        until(lambda: not reap_servers())


def test_a_server_ends_when_its_lifeline_or_then_its_driver_is_killed(
    driver: Driver, tmp_path: Path, model: Path, others: set[str]
) -> None:
    first = Server(tmp_path, model, others)
    assert len(first.pids) >= 3  # the lifeline, the server and what it starts
    assert not first.strewn
    os.kill(first.lifeline, signal.SIGKILL)
    wait_until_gone(first)

    run = tmp_path / "run"
    events = lambda: [row["event"] for row in read_jsonl(run / "events.jsonl")]  # noqa: E731
    until(lambda: "server_restarted" in events(), (tmp_path / "log").read_text)
    assert events().index("server_lost") < events().index("server_restarted")
    shown = (tmp_path / "log").read_text()
    # the watch sees the process end, or a request in flight breaks off first
    assert "! server 0 was lost: " in shown
    assert "; it is started again, requests wait for it (restart 1 " in shown
    assert "! server 0 serves again after " in shown
    rows = lambda: read_jsonl(run / "metrics.jsonl")  # noqa: E731
    away = lambda: any(row.get("time/server_away_s", 0) > 0 for row in rows())  # noqa: E731
    until(away, (tmp_path / "log").read_text)
    assert sum(row.get("count/lost_servers", 0) for row in rows()) == 1

    second = Server(tmp_path, model, others | {first.marker})
    driver.kill()
    wait_until_gone(second)


def test_a_server_ends_when_the_worker_that_owns_it_is_killed(
    driver: Driver, tmp_path: Path, model: Path, others: set[str]
) -> None:
    server = Server(tmp_path, model, others)
    os.kill(server.owner, signal.SIGKILL)
    wait_until_gone(server)


def wait_until_gone(server: Server) -> None:
    until(lambda: not server.left(), server.left)
