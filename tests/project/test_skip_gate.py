"""CI's rule: a skip is a failure that names the test and the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_pytest(
    folder: Path, source: str, *, ci: bool, workers: int = 0
) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_sample.py").write_text(source, encoding="utf-8")
    environment = {**os.environ, "AGENTRL_CI": "1" if ci else "0"}
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
