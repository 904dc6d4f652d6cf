"""Bubblewrap that is missing, refuses, or hands over more than it should."""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl.errors import MachineError, SandboxError
from agentrl.sandbox import BackendReport, SandboxSpec, backends
from agentrl.sandbox import sandbox_spec as spec_module
from agentrl.sandbox.forkserver import hosts
from agentrl.sandbox.forkserver import local as bubblewrap_module
from agentrl.sandbox.forkserver.local import BubblewrapHost, BubblewrapLauncher
from agentrl.sandbox.forkserver.server import ForkServer, HostSettings


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts a script in the place of bwrap; without a script there is none. Nothing is remembered
    from before.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentrl-stand-in-"))
    folder.chmod(0o755)  # also for a uid that is not root's

    def place(script: str) -> None:
        if script:
            (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    monkeypatch.setattr(spec_module, "_chosen", {})
    monkeypatch.setattr(backends, "_reports", {})
    started: dict[HostSettings, ForkServer] = {}
    monkeypatch.setattr(hosts, "_servers", started)
    yield place
    for server in started.values():
        server.close()
    shutil.rmtree(folder)


def refusal() -> str:
    with pytest.raises(MachineError) as refused:
        SandboxSpec("bubblewrap").check()
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_machine_without_bubblewrap_is_told_to_install_it(
    stand_in: Callable[[str], None],
) -> None:
    stand_in("")
    assert (
        "bubblewrap is not installed: no bwrap in PATH; install the system's package bubblewrap"
        in refusal()
    )


def test_a_bubblewrap_that_is_refused_says_what_it_said(
    stand_in: Callable[[str], None],
) -> None:
    stand_in("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    assert "bwrap: setting up uid map: Permission denied; " in refusal()


def test_a_bubblewrap_that_never_answers_ends_with_its_host(
    stand_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap_module, "_INFO_S", 0.2)
    monkeypatch.setattr("agentrl.sandbox.forkserver.server._START_S", 1.0)
    stand_in("exec /bin/sleep 600")
    with pytest.raises(SandboxError, match="did not start within"):
        ForkServer(HostSettings(confine=True, launcher=BubblewrapLauncher()))


def test_a_bubblewrap_that_is_too_old_is_told_so(stand_in: Callable[[str], None]) -> None:
    stand_in("echo 'bwrap: Unknown option --perms' >&2; exit 1")
    assert (
        "Unknown option --perms; it is too old: version 0.6 or later is needed" in refusal()
    )


@pytest.mark.parametrize(
    ("switch", "value", "mend"),
    [
        (
            "apparmor_restrict_unprivileged_userns",
            "1",
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "unprivileged_userns_clone",
            "0",
            "sudo sysctl kernel.unprivileged_userns_clone=1",
        ),
        ("max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"),
    ],
)
def test_the_switch_that_refuses_is_named_with_the_command_that_turns_it(
    switch: str,
    value: str,
    mend: str,
    stand_in: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switches = [
        (str(tmp_path / Path(path).name), off, text)
        for path, off, text in bubblewrap_module._SWITCHES
    ]
    (tmp_path / switch).write_text(f"{value}\n")
    monkeypatch.setattr(bubblewrap_module, "_SWITCHES", switches)
    stand_in("echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    assert mend in refusal()


def test_auto_goes_on_to_the_next_backend(
    stand_in: Callable[[str], None], landlock: BackendReport
) -> None:
    stand_in("exit 1")
    assert SandboxSpec().check().backend != "bubblewrap"


def test_an_interpreter_that_each_run_would_hide_is_refused(tmp_path: Path) -> None:
    launcher = BubblewrapLauncher(folders=("/tmp",))
    with pytest.raises(
        MachineError, match=r"/tmp is needed, and each run has a /tmp of its own"
    ):
        ForkServer(HostSettings(confine=True, launcher=launcher))


def processes_of(server: ForkServer) -> list[Path]:
    """Every process below the one that the owner started, itself included."""
    host = server._host
    assert isinstance(host, BubblewrapHost)
    pending, found = [host.pid], []
    while pending:
        process = Path(f"/proc/{pending.pop()}")
        found.append(process)
        pending += [
            int(pid)
            for pid in (process / f"task/{process.name}/children").read_text().split()
        ]
    return found


def test_no_process_of_the_host_has_a_variable_or_a_uid_of_its_owner(
    bubblewrap: BackendReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_TEST_SECRET", "of the owner")
    server = ForkServer(HostSettings(confine=True, launcher=BubblewrapLauncher()))
    try:
        processes = processes_of(server)
        assert len(processes) >= 3, (
            "bubblewrap outside, its first process inside, the supervisor"
        )
        for process in processes:
            if os.getuid() == 0:
                uids = next(
                    line
                    for line in (process / "status").read_text().splitlines()
                    if line.startswith("Uid:")
                )
                assert "0" not in uids.split()[1:], uids
            assert b"SECRET" not in (process / "environ").read_bytes()
    finally:
        server.close()


async def test_what_the_code_sees_of_the_machine(bubblewrap: BackendReport) -> None:
    code = textwrap.dedent(
        """
        import os, socket
        print(os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], socket.gethostname(), os.listdir("/tmp"))
        print([path for path in ("/home", "/etc/passwd", "/var", "/opt", "/sys", "/run") if os.path.exists(path)])
        """  # noqa: E501
    )
    async with SandboxSpec("bubblewrap").build() as sandbox:
        result = await sandbox.run(code)
    assert result.stdout == b"/sandbox/work /sandbox/work /tmp sandbox []\n[]\n", result
