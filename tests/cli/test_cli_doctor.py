"""``agentrl doctor``: what is measured here, and what is removed."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.cli.main import run
from agentrl.engines.servers.process import FOLDER_PREFIX as SERVER_PREFIX
from agentrl.engines.sglang.environment import SGLANG
from agentrl.sandbox import BACKENDS, GUARANTEES, SandboxSpec
from agentrl.sandbox.forkserver.launcher import FOLDER_PREFIX
from agentrl.sandbox.owner_id import Owner


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    host = f"unix://{tmp_path}/absent.sock"
    monkeypatch.setenv("DOCKER_HOST", host)
    return host


def test_it_shows_what_every_backend_guarantees(
    no_engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if line.startswith("sandbox guarantees")]
    assert head.split()[2:] == list(BACKENDS)
    rows = {
        line.split()[0]: line.split()[1:]
        for line in lines
        if line.split()[:1] and line.split()[0] in GUARANTEES
    }
    held = SandboxSpec().check()
    for name in GUARANTEES:
        assert rows[name][list(BACKENDS).index("unsafe")] == "no"
        assert rows[name][list(BACKENDS).index(held.backend)] == (
            "yes" if name in held.held else "no"
        )
    assert f"sandbox.backend: auto takes {held.backend} here" in lines


def test_a_backend_that_cannot_be_used_says_why(
    no_engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["doctor"])
    assert f"docker: no container engine answers at {no_engine}" in capsys.readouterr().out


@pytest.fixture
def own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; nobody else removes what the dead left in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_reap_removes_what_the_dead_left_and_lists_it(
    no_engine: str, own_temp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = (
        own_temp / f"{FOLDER_PREFIX}{replace(Owner.current(), boot='0' * 12)}-{os.getpid()}"
    )
    left.mkdir()
    (left / "file").write_text("x")
    assert run(["doctor", "--reap"]) == 0
    said = capsys.readouterr().out
    assert f"removed folder {left} of owner" in said
    assert "containers: not looked for: no container engine answers" in said
    assert not left.exists()


@pytest.mark.slow
def test_reap_removes_the_folders_of_dead_servers(
    no_engine: str, own_temp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = (
        own_temp / f"{SERVER_PREFIX}{replace(Owner.current(), boot='0' * 12)}-{os.getpid()}"
    )
    left.mkdir()
    (left / "file").write_text("x")
    assert run(["doctor", "--reap"]) == 0
    assert f"removed folder {left} of owner" in capsys.readouterr().out
    assert not left.exists()


def test_prepare_without_an_engine_is_the_machines_fault(
    no_engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--prepare", "some/image:1"]) == 4
    assert "no container engine answers" in capsys.readouterr().err


def test_it_sees_the_sglang_that_install_made(
    no_engine: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    run(["doctor"])
    assert (
        "SGLang's environment: none here; `agentrl install sglang` makes one"
        in capsys.readouterr().out.splitlines()
    )
    folder = SGLANG.folder(SGLANG.recipe("cpu"))
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    mark = {"sglang": SGLANG.version, "recipe": "cpu", "complete": False}
    (folder / "agentrl-sglang.json").write_text(json.dumps(mark))
    run(["doctor"])
    assert f"{SGLANG.version} for cpu in {folder}, not finished" in capsys.readouterr().out
    (folder / "agentrl-sglang.json").write_text(json.dumps({**mark, "complete": True}))
    run(["doctor"])
    assert (
        f"SGLang's environment: {SGLANG.version} for cpu in {folder}"
        in capsys.readouterr().out.splitlines()
    )
