"""Bubblewrap against the suite: as this user, as one who is not root, and where the kernel has no
Landlock.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.sandbox import GUARANTEES, BackendReport, Limits, SandboxSpec
from agentrl.sandbox.conformance import CHECKS, Check, check_sandbox
from agentrl.sandbox.forkserver.hosts import shared_server
from agentrl.sandbox.forkserver.local import BubblewrapLauncher
from agentrl.sandbox.forkserver.server import HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from tests.kit.waiting import DEADLINE_S

SUITE = """
import asyncio, json, os, sys
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.conformance import check_sandbox

spec = SandboxSpec("bubblewrap")
held = spec.check().held
results = asyncio.run(check_sandbox(spec.build, guarantees=held, only=json.loads(sys.argv[1])))
print(json.dumps([os.getuid(), sorted(held), len(results), [str(result) for result in results if not result.passed]]))
"""  # noqa: E501
NOBODY = 65534


def name(check: Check) -> str:
    return check.name


@pytest.mark.wide
@pytest.mark.parametrize("check", CHECKS, ids=name)
async def test_bubblewrap_passes_every_check_of_what_it_claims(
    check: Check, bubblewrap: BackendReport
) -> None:
    if check.guarantee is not None and check.guarantee not in bubblewrap.held:
        pytest.skip(f"bubblewrap does not claim {check.guarantee!r} here")
    (result,) = await check_sandbox(
        SandboxSpec("bubblewrap").build, guarantees=bubblewrap.held, only=[check.name]
    )
    assert result.passed, result.detail


def test_bubblewrap_claims_everything_but_a_uid_that_only_root_can_give(
    bubblewrap: BackendReport,
) -> None:
    assert bubblewrap.held == set(GUARANTEES) - (set() if os.getuid() == 0 else {"user"})


def suite_as_nobody(checks: list[str] | None) -> tuple[int, list[str], int, list[str]]:
    import agentrl

    if os.getuid() != 0:
        pytest.skip(
            "only root can start a program as another user; the other tests run as one who is not "
            "root"
        )
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(python):
        pytest.skip(f"{python} is missing: an interpreter that any user can reach")
    paths = [
        str(Path(agentrl.__file__).parents[1]),
        *(path for path in sys.path if path.endswith("-packages")),
    ]
    for path in paths:
        for folder in (Path(path), *Path(path).parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                pytest.skip(
                    f"{folder} is closed to other users; clone to where they can read"
                )
    done = subprocess.run(
        [python, "-c", SUITE, json.dumps(checks)],
        env={
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd="/",
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    uid, held, num_checks, failed = json.loads(done.stdout)
    return uid, held, num_checks, failed


@pytest.mark.slow
def test_a_user_who_is_not_root_can_use_it(bubblewrap: BackendReport) -> None:
    checks = [
        "ok",
        "read outside",
        "signal others",
        "fork bomb",
        "disk fill",
        "setsid child outlives a timeout",
    ]
    uid, held, num_checks, failed = suite_as_nobody(checks)
    assert (uid, held, num_checks, failed) == (
        NOBODY,
        sorted(set(GUARANTEES) - {"user"}),
        len(checks),
        [],
    )


@pytest.mark.slow
@pytest.mark.wide
def test_a_user_who_is_not_root_passes_every_check(bubblewrap: BackendReport) -> None:
    _, held, num_checks, failed = suite_as_nobody(None)
    assert failed == []
    assert num_checks == sum(check.guarantee in {None, *held} for check in CHECKS)


@pytest.mark.slow
async def test_what_it_claims_holds_without_landlock_too(bubblewrap: BackendReport) -> None:
    settings = HostSettings(confine=True, abi_cap=0, launcher=BubblewrapLauncher())
    results = await check_sandbox(
        lambda: ForkedSandbox(lambda: shared_server(settings), Limits()),
        guarantees=bubblewrap.held,
    )
    assert shared_server(settings).facts["abi"] == 0
    assert [str(result) for result in results if not result.passed] == []
