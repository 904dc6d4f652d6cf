"""The two commands of the README: what they run, when they install, and what they say where they
cannot.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.kit.waiting import DEADLINE_S

pytestmark = pytest.mark.tooling

ROOT = Path(__file__).resolve().parents[2]

if shutil.which("make") is None:
    pytest.skip("make is not installed", allow_module_level=True)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # what a make around this test, or CI, has set must not reach the make under test
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MAKE", "ARGS", "TORCH_INDEX"))
    }
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An environment folder that make takes for a finished installation."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".installed", ".installed-test"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An environment folder that does not exist."""
    return tmp_path / "new"


def test_an_interpreter_that_is_too_old_gives_one_line_with_the_mend(empty: Path) -> None:
    result = make("python", f"VENV={empty}", "PYTHON=/bin/false")

    assert result.returncode != 0
    first, *rest = result.stderr.splitlines()
    assert first.startswith(
        "agentrl needs Python 3.11 or 3.12 with venv (PYTHON=/bin/false is not that): install one"
    )
    assert [line for line in rest if not line.startswith("make: ***")] == []


def test_the_interpreter_can_be_named(empty: Path) -> None:
    result = make("python", f"VENV={empty}", f"PYTHON={sys.executable}")

    assert result.returncode == 0, result.stderr
    assert (empty / "bin" / "python").exists()


def test_a_second_call_installs_nothing(installed: Path) -> None:
    assert "pip" not in make("-n", "demo", f"VENV={installed}").stdout
    assert "pip" not in make("-n", "test", f"VENV={installed}").stdout


def test_new_pins_install_again(installed: Path) -> None:
    os.utime(installed / ".installed", (0, 0))

    commands = make("-n", "demo", f"VENV={installed}").stdout
    assert (
        "pip install --disable-pip-version-check -c constraints-cpu.txt  -e ." in commands
    )


def test_torch_index_is_added_to_the_usual_one(installed: Path) -> None:
    os.utime(installed / ".installed", (0, 0))

    commands = make(
        "-n", "demo", f"VENV={installed}", "TORCH_INDEX=https://example.org/cpu"
    ).stdout
    assert "--extra-index-url https://example.org/cpu -e ." in commands


def test_demo_takes_overrides(installed: Path) -> None:
    commands = make("-n", "demo", f"VENV={installed}", "ARGS=train.steps=3").stdout

    assert commands.splitlines() == [
        f"{installed}/bin/agentrl train examples/code/config.yaml --then-view train.steps=3"
    ]


def test_a_marker_in_args_stands_after_the_default_one(installed: Path) -> None:
    # pytest obeys the last -m
    commands = make("-n", "test", f"VENV={installed}", "ARGS=-m slow").stdout

    assert commands.strip().endswith('not wide and not tooling" --durations=15 -m slow')


def test_all_tests_are_those_of_both_calls_of_pytest(installed: Path) -> None:
    commands = make("-n", "test-all", f"VENV={installed}").stdout
    expressions = [Expression.compile(one) for one in re.findall(r'-m "([^"]+)"', commands)]
    names = (
        "docker",
        "sglang",
        "vllm",
        "agents",
        "s3",
        "trackers",
        "browser",
        "slow",
        "wide",
        "tooling",
        "invariant",
    )
    for marks in [
        set(),
        *({name} for name in names),
        {"docker", "wide"},
        {"browser", "slow"},
    ]:
        chosen = [
            one.evaluate(lambda name, own=marks, **_: name in own) for one in expressions
        ]
        assert chosen.count(True) == 1, marks
        with_gpu = {*marks, "gpu"}
        assert not any(
            e.evaluate(lambda name, own=with_gpu, **_: name in own) for e in expressions
        )


def test_every_target_is_in_the_help() -> None:
    targets = [
        line.split()[1]
        for line in make("help").stdout.splitlines()
        if line.startswith("make ")
    ]

    assert targets == [
        "demo",
        "test",
        "test-all",
        "check",
        "bench",
        "python",
        "agents",
        "programs",
        "s3",
        "trackers",
        "clean",
    ]


def test_the_agents_environment_is_made_once_for_its_pins(
    installed: Path, tmp_path: Path
) -> None:
    agents = tmp_path / "environment"
    command = ("-n", "agents", f"VENV={installed}", f"AGENTS_VENV={agents}")
    first = make(*command).stdout
    assert "-r tests/agent_server/agents/requirements.txt" in first
    agents.mkdir()
    stamp = Path(first.split()[-1])
    assert stamp.parent == agents
    stamp.touch()
    # a clone's files are younger than an environment that outlives it
    os.utime(stamp, (0, 0))
    assert "pip" not in make(*command).stdout
    stamp.rename(f"{stamp}-of-other-pins")
    assert "pip" in make(*command).stdout
