"""`agentrl view` as a process, and what it tells people."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.store import RunDirectory
from agentrl.viewer.launch import Address, ways_in

ADDRESS = Address("127.0.0.1", 8123, "secret")


@contextmanager
def started(run: RunDirectory) -> Iterator[tuple[int, str]]:
    """The process of `agentrl view`, and its link; ended by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl", "view", str(run.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        link = re.search(r"http://\S+", process.stdout.readline())
        assert link, process.stderr and process.stderr.read()
        yield process.pid, link[0]
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert (out, err) == ("", "")


def test_view_starts_quickly_without_torch_prints_its_link_and_ends_by_ctrl_c(
    run: RunDirectory,
) -> None:
    began = time.monotonic()
    with started(run) as (_, link):
        with httpx.Client(follow_redirects=True) as browser:
            browser.get(link)
            root = link.partition("/?")[0]
            [row] = browser.get(f"{root}/api/runs").json()["runs"]
        assert row["name"] == "first"
        assert link.endswith(f"#/run/{row['key']}")  # one run opens on its overview
        assert time.monotonic() - began < 10  # 1.5 s where nothing else runs: benchmarks/viewer.py


ANOTHER_USER = """
import glob, os, sys, urllib.error, urllib.request
port, pid, cache = sys.argv[1:]
(index,) = glob.glob(cache + "/agentrl/index/*.sqlite")

def ask(path):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}")
    except urllib.error.HTTPError as error:
        return error.code

ask("/")  # imports what another user may not read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path in ("/", "/app.js", "/api/runs", "/?token=guess"):
    print(ask(path))
for path in (f"/proc/{pid}/environ", index):
    try:
        open(path)
    except PermissionError:
        print("closed")
print(open(f"/proc/{pid}/cmdline").read())
"""


def test_another_user_of_the_machine_sees_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    with tempfile.TemporaryDirectory() as cache:
        os.chmod(cache, 0o755)  # what closes the index is its own folder
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        with started(run) as (pid, link):
            token = link.partition("token=")[2].partition("#")[0]
            root = link.partition("/?")[0]
            headers = {"Authorization": f"Bearer {token}"}
            [row] = httpx.get(f"{root}/api/runs", headers=headers).json()["runs"]
            httpx.get(f"{root}/api/runs/{row['key']}/trajectories", headers=headers)
            port = root.rpartition(":")[2]
            done = subprocess.run(
                [sys.executable, "-c", ANOTHER_USER, port, str(pid), cache],
                capture_output=True,
                text=True,
            )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:6] == ["401"] * 4 + ["closed"] * 2, done.stdout
    assert token not in done.stdout  # nor is it in the list of processes


def test_what_the_viewer_imports_needs_no_gpu_stack() -> None:
    code = (
        "import sys, agentrl.viewer.app, agentrl.viewer.launch, agentrl.cli.runs.view_command;"
        "print([n for n in ('torch', 'ray', 'sglang', 'transformers', 'datasets', 'pandas')"
        " if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_over_ssh_the_tunnel_is_told_and_no_browser_opened() -> None:
    environment = {"SSH_CONNECTION": "10.0.0.9 5000 10.0.0.1 2222", "USER": "ann", "DISPLAY": ":1"}
    lines, desktop = ways_in(ADDRESS, environment, terminal=True)
    assert lines[0] == "http://127.0.0.1:8123/?token=secret"
    assert "ssh -N -L 8123:127.0.0.1:8123 -p 2222 ann@10.0.0.1" in lines[1]
    assert not desktop


@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_browser_is_opened_on_a_desktop_alone(name: str) -> None:
    assert ways_in(ADDRESS, {name: ":0"}, terminal=True)[1]
    assert not ways_in(ADDRESS, {name: ":0"}, terminal=False)[1]
    assert ways_in(ADDRESS, {}, terminal=True)[1] == (sys.platform == "darwin")


def test_a_folder_that_is_no_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert run_command_line(["view", str(tmp_path)]) == 3
    assert "none has a run.json" in capsys.readouterr().err
    assert run_command_line(["view", str(tmp_path / "none")]) == 3
    assert "does not exist" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_command_line(["view", str(run.root), "--port", str(port)]) == 4
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_an_address_of_another_machine_is_named(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["view", str(run.root), "--host", "192.0.2.1"]) == 4
    assert "set --host to an address of this machine" in capsys.readouterr().err


def test_a_link_is_opened_by_a_file_that_others_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import webbrowser

    from agentrl.viewer.launch import open_browser

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    remove = open_browser(ADDRESS)
    # the list of processes shows a browser's arguments to everybody
    assert "secret" not in opened[0]
    page = Path(opened[0].removeprefix("file://"))
    assert "secret" in page.read_text()
    assert (os.stat(page).st_mode & 0o77, os.stat(page.parent).st_mode & 0o77) == (0, 0)
    remove()
    assert not page.exists()
