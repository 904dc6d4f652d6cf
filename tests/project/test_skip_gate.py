"""CI's rules: a skip is a failure that names the test and the reason; no test begins too late."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tooling

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_pytest(
    folder: Path, source: str, *, ci: bool, workers: int = 0
) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_sample.py").write_text(source, encoding="utf-8")
    environment = {
        **os.environ,
        "AGENTRL_CI": "1" if ci else "0",
        "AGENTRL_TESTS_UNTIL": "inf",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        str(workers),
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(folder),
    ]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


SKIPPED = """
import pytest

def test_good():
    pass

def test_lacking():
    pytest.skip("no Landlock in this kernel")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_skip_fails_the_ci_session_by_name_and_reason(tmp_path: Path, workers: int) -> None:
    result = run_pytest(tmp_path, SKIPPED, ci=True, workers=workers)

    assert result.returncode == 1
    assert "test_sample.py::test_lacking: no Landlock in this kernel" in result.stdout


def test_a_skip_passes_outside_ci(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPPED, ci=False).returncode == 0


@pytest.mark.parametrize(
    ("source", "code"),
    [
        pytest.param(
            "import pytest\npytest.importorskip('no_such_module')",
            1,
            id="a module that skips itself",
        ),
        pytest.param(
            "import pytest\ndef test_a(): pytest.skip('needs macOS 15')", 0, id="another platform"
        ),
        pytest.param(
            "import pytest\n@pytest.mark.xfail\ndef test_a(): assert False",
            0,
            id="an expected failure",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_counts_as_a_skip(tmp_path: Path, source: str, code: int, workers: int) -> None:
    plus_one_that_passes = source + "\ndef test_good(): pass\n"

    assert run_pytest(tmp_path, plus_one_that_passes, ci=True, workers=workers).returncode == code


LATE = """
import conftest
from pathlib import Path

def test_during_which_the_time_ends():
    conftest.UNTIL = 0.0

def test_that_would_begin_too_late():
    Path(__file__).with_name("begun").touch()
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_what_would_begin_too_late_is_left_out_and_told(tmp_path: Path, workers: int) -> None:
    result = run_pytest(tmp_path, LATE, ci=True, workers=workers)

    assert result.returncode == 0, result.stdout
    assert "left out, since no time was left: 1" in result.stdout
    assert "test_sample.py: 1" in result.stdout
    assert not (tmp_path / "begun").exists()


def test_files_have_an_order_for_each_commit(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    orders = []
    for commit in ("a", "a", "b"):
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--rootdir", tmp_path]
        told = subprocess.run(
            [*command, tmp_path],
            env={**os.environ, "AGENTRL_TESTS_ORDER": commit},
            capture_output=True,
            text=True,
            timeout=100,
        )
        orders.append([line for line in told.stdout.splitlines() if "::" in line])
    first, again, other = orders
    assert first == again != other
    assert sorted(first) == sorted(other)
    assert [name.rpartition("_")[2] for name in first] == ["one", "two"] * 6
