"""A run directory that agentrl 0.1.0 wrote before its modules and keys were renamed: it opens, and
goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl

HERE = Path(__file__).parent
WHERE_IT_RAN = "/project"


@pytest.fixture
def old_run(tmp_path: Path) -> RunDirectory:
    """The directory, beside the user's file that its configuration names."""
    with tarfile.open(HERE / "run_of_0_1_0.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "task.py").write_text((HERE / "tiny_task.py").read_text())
    run = RunDirectory(tmp_path / "run")
    text = run.config_path.read_text()
    assert WHERE_IT_RAN in text
    run.config_path.write_text(text.replace(WHERE_IT_RAN, str(tmp_path)))
    return run


def test_ls_lists_its_trajectories(
    old_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["ls", str(old_run.root), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["rollout_index"] for row in rows} == {0, 1}
    assert len(rows) == len({row["id"] for row in rows}) > 16


def test_show_prints_the_run_and_each_episode(
    old_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["show", str(old_run.root)]) == 0
    assert "sums" in capsys.readouterr().out
    for summary in TrajectoryReader(old_run).summaries():
        assert run_command_line(["show", str(old_run.root), summary.id, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["id"] == summary.id


def test_eval_examines_its_last_policy(
    old_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["eval", str(old_run.root), "--json"]) == 0
    assert "sums" in json.loads(capsys.readouterr().out)["sources"]


@pytest.mark.slow
def test_serve_policy_answers_with_its_last_policy(old_run: RunDirectory) -> None:
    with serving(old_run, "--port", "0") as url:
        answer = httpx.post(
            f"{url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "1 and 2?"}]},
            timeout=60.0,
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"


@contextlib.contextmanager
def serving(run: RunDirectory, *arguments: str) -> Iterator[str]:
    out = run.root.parent / "served"
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "serve",
        "policy",
        str(run.root),
        str(run.config_path),
    ]
    process = subprocess.Popen(
        [*command, *arguments, "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if "http://" in line:
                yield "http://" + line.partition("http://")[2].split()[0].rstrip(
                    "/,;"
                ).removesuffix("/v1")
                break
        else:
            pytest.fail("it ended before it served: " + "".join(told))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.slow
def test_it_is_resumed_for_more_steps(
    old_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old_run.root.parent)
    command = ["train", str(old_run.config_path), "--resume", "train.steps=6"]
    assert run_command_line(command) == 0
    rows = read_jsonl(old_run.metrics_path)
    assert [row["step"] for row in rows if row["stage"] == "rl"] == [0, 1, 2, 3, 4, 5, 6]
