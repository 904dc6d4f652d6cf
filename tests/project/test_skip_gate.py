"""CI's rules: a skip is a failure that names the test and the reason; no test begins too late but
one that holds an invariant; a commit has its part of slow and wide tests; the summary tells all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.waiting import DEADLINE_S

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
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


SKIPPED = """
import pytest

def test_good():
    pass

def test_lacking():
    pytest.skip("no Landlock in this kernel")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_skip_fails_the_ci_session_by_name_and_reason(
    tmp_path: Path, workers: int
) -> None:
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
            "import pytest\ndef test_a(): pytest.skip('needs macOS 15')",
            0,
            id="another platform",
        ),
        pytest.param(
            "import pytest\n@pytest.mark.xfail\ndef test_a(): assert False",
            0,
            id="an expected failure",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_counts_as_a_skip(
    tmp_path: Path, source: str, code: int, workers: int
) -> None:
    plus_one_that_passes = source + "\ndef test_good(): pass\n"

    assert (
        run_pytest(tmp_path, plus_one_that_passes, ci=True, workers=workers).returncode
        == code
    )


LATE = """
import conftest
from pathlib import Path

def test_during_which_the_time_ends():
    conftest.UNTIL = 0.0

def test_that_would_begin_too_late():
    Path(__file__).with_name("begun").touch()
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_what_would_begin_too_late_is_left_out_and_told(
    tmp_path: Path, workers: int
) -> None:
    result = run_pytest(tmp_path, LATE, ci=True, workers=workers)

    assert result.returncode == 0, result.stdout
    assert "left out, since no time was left: 1" in result.stdout
    assert "test_sample.py: 1" in result.stdout
    assert not (tmp_path / "begun").exists()


def test_an_invariant_for_which_no_time_is_left_fails(tmp_path: Path) -> None:
    late = LATE.replace("def test_that", "@pytest.mark.invariant\ndef test_that")
    result = run_pytest(tmp_path, f"import pytest\n{late}", ci=True)

    assert result.returncode == 1
    assert "no time is left for it in this run, and it holds an invariant" in result.stdout


WIDE = """
import pytest

@pytest.mark.wide
@pytest.mark.parametrize("number", range(32))
def test_of_a_kind(number):
    pass

@pytest.mark.wide("together")
@pytest.mark.parametrize("number", range(2))
def test_that_share_their_costs(number):
    pass

def test_any():
    pass
"""

SLOW = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_that_takes_long(number):
    pass

@pytest.mark.slow
@pytest.mark.invariant
def test_that_holds_an_invariant():
    pass
"""


def collected(folder: Path, *arguments: str, **environment: str) -> list[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "--rootdir",
        str(folder),
    ]
    told = subprocess.run(
        [*command, *arguments, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return [line for line in told.stdout.splitlines() if "::" in line]


def test_a_commit_has_a_part_of_slow_and_wide_tests_and_all_commits_have_them_all(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_wide.py").write_text(WIDE)
    for file in range(24):
        (tmp_path / f"test_slow_{file}.py").write_text(SLOW)
    parts = [collected(tmp_path, AGENTRL_TESTS_PART=commit) for commit in "acdfhjln"]
    for own in parts:
        assert sum("test_any" in name for name in own) == 1
        assert sum("invariant" in name for name in own) == 24
        assert sum("share" in name for name in own) in (0, 2)
        assert sum("of_a_kind" in name for name in own) < 24
        long = Counter(name.partition("::")[0] for name in own if "takes_long" in name)
        assert 0 < len(long) < 12
        assert {*long.values()} == {2}
    assert {name for own in parts for name in own} == {*collected(tmp_path)}


def test_a_file_without_a_chosen_marker_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "test_wide.py").write_text(WIDE)
    (tmp_path / "test_plain.py").write_text("raise SystemExit('imported')")
    assert len(collected(tmp_path, "-m", "wide and not slow")) == 34


def test_the_summary_names_phases_slowest_tests_and_what_failed(tmp_path: Path) -> None:
    case = '<testcase classname="tests.a" name="{}" time="{}">{}</testcase>'
    failed = '<failure message="no">because</failure>'
    cases = [
        *(case.format(f"test_{n}", n, "") for n in range(12)),
        case.format("bad", 0.5, failed),
    ]
    suite = f'<testsuite tests="13" failures="1">{"".join(cases)}</testsuite>'
    (tmp_path / "fast.xml").write_text(f"<testsuites>{suite}</testsuites>")
    (tmp_path / "phases").write_text("7\t0\tcheck\n30\t1\ttests: fast\n5\t0\ttests: s3\n")
    command = [sys.executable, CONFTEST.parents[1] / ".ci" / "summary.py", tmp_path, "99"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[:2] == ["=== failure in fast: tests.a::bad", "because"]
    assert "    30  tests: fast (exit 1)" in lines
    slowest = [line.split("::")[1] for line in lines if "::test_" in line]
    assert slowest == [f"test_{n} (fast)" for n in range(11, 1, -1)]
    assert lines[-1] == (
        "12 passed, 1 failed, 0 errors, 0 skipped in 99 s; "
        "failed: tests: fast, no invariant was tried"
    )


def test_files_have_an_order_for_each_commit(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text(
            "def test_one(): pass\ndef test_two(): pass\n"
        )
    orders = [collected(tmp_path, AGENTRL_TESTS_ORDER=commit) for commit in ("a", "a", "b")]
    first, again, other = orders
    assert first == again != other
    assert sorted(first) == sorted(other)
    assert [name.rpartition("_")[2] for name in first] == ["one", "two"] * 6
