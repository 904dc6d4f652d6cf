"""`agentrl view` as a process, and what it tells people."""

from __future__ import annotations

import os
import pty
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.store import RunDirectory
from agentrl.viewer import launch
from agentrl.viewer.launch import Address, ways_in
from tests.kit.waiting import DEADLINE_S, until
from tests.run.tiny_run import CONFIG
from tests.viewer.server.viewers import viewing

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
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert (out, err) == ("", "")


def test_view_starts_without_torch_prints_its_link_and_ends_by_ctrl_c(
    run: RunDirectory,
) -> None:
    with started(run) as (_, link):
        with httpx.Client(follow_redirects=True) as browser:
            browser.get(link)
            root = link.partition("/?")[0]
            [row] = browser.get(f"{root}/api/runs").json()["runs"]
        assert row["name"] == "first"
        assert link.endswith(f"#/run/{row['key']}")  # one run opens on its overview


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


@pytest.mark.slow
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
        "import sys, agentrl.viewer.app, agentrl.viewer.launch, agentrl.cli.view_command;"
        "print([n for n in ('torch', 'ray', 'sglang', 'transformers', 'datasets', 'pandas')"
        " if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_a_page_needs_loads_no_pandas(run: RunDirectory) -> None:
    """It is there, and pyarrow would load it at its first array."""
    with started(run) as (pid, link):
        root, _, token = link.partition("/?token=")
        headers = {"Authorization": f"Bearer {token.partition('#')[0]}"}
        [row] = httpx.get(f"{root}/api/runs", headers=headers).json()["runs"]
        for part in ("overview", "trajectories", "facets"):
            answer = httpx.get(f"{root}/api/runs/{row['key']}/{part}", headers=headers)
            assert answer.status_code == 200, answer.text
        mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    assert "pyarrow" in mapped
    assert "pandas" not in mapped


def test_a_viewer_that_ended_hides_no_package(run: RunDirectory) -> None:
    def hides() -> bool:
        return any(isinstance(one, launch._NoPandas) for one in sys.meta_path)

    with viewing(run.root):
        assert hides()
    assert not hides()


def test_over_ssh_the_tunnel_is_told_and_no_browser_opened() -> None:
    environment = {
        "SSH_CONNECTION": "10.0.0.9 5000 10.0.0.1 2222",
        "USER": "ann",
        "DISPLAY": ":1",
    }
    lines, desktop = ways_in(ADDRESS, environment, terminal=True)
    assert lines[0] == "http://127.0.0.1:8123/?token=secret"
    assert "ssh -N -L 8123:127.0.0.1:8123 -p 2222 ann@10.0.0.1" in lines[1]
    assert not desktop


@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_browser_is_opened_on_a_desktop_alone(name: str) -> None:
    assert ways_in(ADDRESS, {name: ":0"}, terminal=True)[1]
    assert not ways_in(ADDRESS, {name: ":0"}, terminal=False)[1]
    assert ways_in(ADDRESS, {}, terminal=True)[1] == (sys.platform == "darwin")


BROWSER = """#!{python}
# asks for the page that it was given, and notes what it got
import re, sys, urllib.request
from pathlib import Path
page = Path(sys.argv[1].removeprefix("file://")).read_text()
link = re.search("http://[^#]+", page)[0]
with_cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
Path("{noted}.part").write_text(f"{{link}} {{with_cookies.open(link).status}}")
Path("{noted}.part").rename("{noted}")
"""
SSH = {"SSH_CONNECTION": "10.0.0.9 5000 10.0.0.1 22", "USER": "ann", "DISPLAY": ":0"}


def train_then_view(folder: Path) -> list[str]:
    """The command line of a tiny run."""
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    given = ("--then-view", f"run.dir={folder / 'run'}", "stages.warmup.steps=1")
    return [
        "train",
        str(folder / "config.yaml"),
        *given,
        "stages.rl.steps=1",
        "stages.rl.eval={}",
    ]


class OnTerminal:
    """A command on a terminal of its own, with a program in place of a browser.

    Args:
        tokens: of the command line.
        environment: what tells of a desktop.
        noted: where the program writes what it opened.
    """

    def __init__(
        self, tokens: Sequence[str], environment: Mapping[str, str], noted: Path
    ) -> None:
        program = noted.with_suffix(".py")
        program.write_text(BROWSER.format(python=sys.executable, noted=noted))
        program.chmod(0o700)
        told = ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if name not in told}
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentrl", *tokens],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "BROWSER": str(program), "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, pattern: str, within_s: float = 90.0) -> re.Match[str]:
        end = time.monotonic() + within_s
        while (found := re.search(pattern, self.shown)) is None:
            ready, _, _ = select.select(
                [self._ours], [], [], max(0.0, end - time.monotonic())
            )
            assert ready, self.shown
            self.shown += self._read()
        return found

    def end(self) -> None:
        """Kills what a failed test left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        while text := self._read():
            self.shown += text
        os.close(self._ours)
        return self.process.wait(DEADLINE_S)

    def _read(self) -> str:
        try:
            return os.read(self._ours, 1 << 16).decode()
        except OSError:  # the other side is closed
            return ""


Terminal = Callable[..., OnTerminal]


@pytest.fixture
def on_terminal() -> Iterator[Terminal]:
    made: list[OnTerminal] = []

    def begin(*arguments: Any) -> OnTerminal:
        made.append(OnTerminal(*arguments))
        return made[-1]

    yield begin
    for one in made:
        one.end()


def read_when_there(path: Path) -> str:
    until(path.exists)
    return path.read_text()


@pytest.mark.slow
def test_on_a_desktop_the_link_is_opened(
    run: RunDirectory, tmp_path: Path, on_terminal: Terminal
) -> None:
    noted = tmp_path / "opened"
    shown = on_terminal(["view", str(run.root)], {"DISPLAY": ":0"}, noted)
    link = shown.read_until(r"http://[^#\s]+(?=#)")[0]
    assert read_when_there(noted) == f"{link} 200"
    assert shown.interrupt() == 0
    assert "Traceback" not in shown.shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "options"), [(SSH, []), ({}, []), ({"DISPLAY": ":0"}, ["--no-open"])]
)
def test_elsewhere_nothing_is_opened(
    run: RunDirectory,
    tmp_path: Path,
    on_terminal: Terminal,
    environment: dict[str, str],
    options: list[str],
) -> None:
    noted = tmp_path / "opened"
    shown = on_terminal(["view", str(run.root), *options], environment, noted)
    port = shown.read_until(r"http://127\.0\.0\.1:(\d+)/\?token=\S+\s")[1]
    if environment is SSH:  # in one piece, whatever the terminal's width
        shown.read_until(rf"ssh -N -L {port}:127\.0\.0\.1:{port} ann@10\.0\.0\.1\r\n")
    assert shown.interrupt() == 0
    assert not noted.exists()
    assert ("ssh" in shown.shown) == (environment is SSH)


@pytest.mark.slow
def test_a_run_that_has_been_trained_is_shown(
    tmp_path: Path, on_terminal: Terminal
) -> None:
    noted = tmp_path / "opened"
    shown = on_terminal(train_then_view(tmp_path), {"DISPLAY": ":0"}, noted)
    ended = shown.read_until(r"Ctrl-C ends the viewer", 240.0)
    link = shown.read_until(r"viewing\s+\S+\s+at\s+(http://[^#\s]+)#/run/\S+")[1]
    assert "seconds by phase" in shown.shown[: ended.start()]
    assert read_when_there(noted) == f"{link} 200"
    assert shown.interrupt() == 0


@pytest.mark.slow
def test_without_a_terminal_a_trained_run_starts_no_viewer(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", *train_then_view(tmp_path)],
        env={**os.environ, "DISPLAY": ":0", "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == (
        f"show it in the browser: agentrl view {tmp_path / 'run'}"
    )
    assert "http://" not in done.stdout


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

    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(webbrowser, "open", opened.put)
    remove = open_browser(ADDRESS)
    # the list of processes shows a browser's arguments to everybody
    address = opened.get(timeout=DEADLINE_S)
    assert "secret" not in address
    page = Path(address.removeprefix("file://"))
    assert "secret" in page.read_text()
    assert (os.stat(page).st_mode & 0o77, os.stat(page.parent).st_mode & 0o77) == (0, 0)
    remove()
    assert not page.exists()


@pytest.mark.slow
def test_what_was_read_goes_back_to_the_system(tmp_path: Path) -> None:
    code = (
        "import sys; from agentrl.cli.main import run\n"
        "try: run(['view', sys.argv[1]])\n"
        "finally: import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.stdout.splitlines()[-1] == "system"
