"""`agentrl view` as a process, and what it tells people."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.store import RunDirectory
from agentrl.viewer.launch import Address, ways_in

ADDRESS = Address("127.0.0.1", 8123, "secret")


def test_view_starts_quickly_without_torch_prints_its_link_and_ends_by_ctrl_c(
    run: RunDirectory,
) -> None:
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl", "view", str(run.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        link = re.search(r"http://\S+", line)
        assert link, process.stderr and process.stderr.read()
        with httpx.Client(follow_redirects=True) as browser:
            browser.get(link[0])
            root = link[0].partition("/?")[0]
            [row] = browser.get(f"{root}/api/runs").json()["runs"]
            assert row["name"] == "first"
            assert link[0].endswith(f"#/run/{row['key']}")  # one run opens on its overview
        assert time.monotonic() - began < 10  # 1.5 s where nothing else runs: benchmarks/viewer.py
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert (out, err) == ("", "")


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


def test_what_was_read_goes_back_to_the_system(tmp_path: Path) -> None:
    code = (
        "import sys; from agentrl.cli.main import run\n"
        "try: run(['view', sys.argv[1]])\n"
        "finally: import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines()[-1] == "system"
