"""What every test gets: no hub, one thread a process, and in CI no silent skip and an end in time.

Under ``AGENTRL_CI=1`` a skipped test fails the session, by name and with its reason: a phase of
``.ci/run`` selects the tests that this machine must be able to run, so a skip there means that
something is missing.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings

# Before torch, transformers or ray is imported by any test, and inherited by each process that a
# test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
# by Ray's 15, what else runs on the machine starves the workers of a cluster that a test starts
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts what runs in its background with Ctrl-C ignored, which every process that a test
# starts would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A property is bounded by the number of its examples, never by time: a busy machine is no failure.
# CI repeats itself.
settings.register_profile("agentrl", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("agentrl")

# The only reasons for which CI, which runs on Linux, may skip: the test is about another platform,
# about a promise that no machine lets the backend make (docs/sandbox.md: `landlock` watches the
# disk, the kernel does not bound it), or about memory cgroups, which processes in a container may
# not make.
ALLOWED_IN_CI = (
    "needs macOS",
    "landlock does not claim 'disk'",
    "no memory cgroup can be made here",
    "no time is left",
)

pytest_plugins = ("tests.controller.remote",)

UNTIL = float(os.environ.get("AGENTRL_TESTS_UNTIL") or "inf")
"""No test begins at a later second since the epoch; the files of those left out are told."""

LEFT_OUT: Counter[str] = Counter()
"""Tests for which no time was left, by their files."""

PARTS = {"wide": 4, "slow": 8}
"""A commit tries one of so many parts of the tests that bear a marker; the first counts."""

MARKS = re.compile(r"\bmark\.(\w+)|\b(wide)_but\b")


class SkipGate:
    """Fails a session in which a test was skipped for a reason that is not allowed."""

    def __init__(self) -> None:
        self.skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def _note(self, nodeid: str, longrepr: object) -> None:
        # pytest gives a skip as (file, line, "Skipped: reason")
        reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix(
            "Skipped: "
        )
        if not reason.startswith(ALLOWED_IN_CI):
            self.skips.append(f"{nodeid}: {reason}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skips:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skips:
            terminalreporter.section(
                "skipped, which AGENTRL_CI=1 forbids", red=True, bold=True
            )
            for skip in self.skips:
                terminalreporter.line(skip, red=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Passes over a file that no choice of its markers could make ``-m`` choose.

    The import of nine thousand tests takes longer than the tests of most markers do.
    """
    chosen = config.option.markexpr
    if not chosen or not re.fullmatch(r"test_\w+\.py", collection_path.name):
        return None
    texts = [collection_path, collection_path.with_name("conftest.py")]
    marks = {
        name
        for text in texts
        if text.exists()
        for pair in MARKS.findall(text.read_text(encoding="utf-8"))
        for name in pair
        if re.search(rf"\b{name}\b", chosen)
    } - {""}
    expression = Expression.compile(chosen)
    sizes = range(len(marks) + 1)
    borne = itertools.chain(*(itertools.combinations(marks, size) for size in sizes))
    if any(expression.evaluate(lambda name, own=own, **_: name in own) for own in borne):
        return None
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of slow and wide tests the part of ``AGENTRL_TESTS_PART``, a commit; files in an order that
    ``AGENTRL_TESTS_ORDER`` decides.
    """
    if commit := os.environ.get("AGENTRL_TESTS_PART"):
        others = [item for item in items if not is_chosen(item, commit)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    if order := os.environ.get("AGENTRL_TESTS_ORDER"):
        items.sort(key=lambda item: number(f"{order} {item.path}"))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no search for garbage walks through it again.

    Training's tests search for it as they leave their process group, and hosts of episodes as they
    start: each time a second among the objects of thousands of tests.
    """
    gc.collect()
    gc.freeze()


def is_chosen(item: pytest.Item, commit: str) -> bool:
    """Whether a commit tries a test, with those that share its costs: what a wide one names, and
    the fixtures of its file where it is slow. What holds an invariant is tried at each commit.
    """
    if item.get_closest_marker("invariant"):
        return True
    for name, parts in PARTS.items():
        if mark := item.get_closest_marker(name):
            alone = item.path.name if name == "slow" else item.name
            return (
                number(mark.args[0] if mark.args else alone) % parts
                == number(commit) % parts
            )
    return True


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what would begin too late, but no invariant."""
    if time.time() > UNTIL:
        if item.get_closest_marker("invariant"):
            pytest.fail("no time is left for it in this run, and it holds an invariant")
        pytest.skip("no time is left for it in this run")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and "no time is left for it" in str(report.longrepr):
        LEFT_OUT[report.nodeid.partition("::")[0]] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEFT_OUT:
        terminalreporter.section(f"left out, since no time was left: {LEFT_OUT.total()}")
        for path, number in sorted(LEFT_OUT.items()):
            terminalreporter.line(f"{path}: {number}")


@pytest.fixture(autouse=True, scope="module")
def _no_group_stays() -> Iterator[None]:
    """No file leaves a process group to the next one of its process."""
    yield
    if group := sys.modules.get("agentrl.training.parallel.process_group"):
        group.leave()


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("AGENTRL_CI") == "1":
        config.pluginmanager.register(SkipGate(), "agentrl-skip-gate")
