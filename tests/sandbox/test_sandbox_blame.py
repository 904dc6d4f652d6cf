"""Whose fault a kill is: the run's where its own limit was reached, else a failure to try again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.sandbox import BackendReport
from agentrl.sandbox.forkserver import cgroups
from tests.kit.waiting import DEADLINE_S

SCRIPT = Path(__file__).with_name("short_machine.py")


@pytest.fixture
def above() -> Iterator[tuple[Path, Path]]:
    """A memory cgroup above those of sandboxes, and the one in it where processes may be."""
    node = cgroups.find_node()
    if node is None:
        pytest.skip("no memory cgroup can be made here")
    folder = Path(node.path, f"agentrl-test-{os.getpid()}-{os.urandom(4).hex()}")
    inner = folder / "inner" if node.version == 2 else folder
    folder.mkdir()
    try:
        if node.version == 2:  # processes lie in leaves only
            (folder / "cgroup.subtree_control").write_text("+memory")
            inner.mkdir()
        yield folder, inner
    finally:
        for path in dict.fromkeys((inner, folder)):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


@pytest.mark.wide
@pytest.mark.parametrize("with_cgroup", [True, False])
@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
def test_a_machine_short_of_memory_is_no_fault_of_the_code(
    backend: str, with_cgroup: bool, above: tuple[Path, Path], request: Any
) -> None:
    report: BackendReport = request.getfixturevalue(backend)
    assert report.problem is None
    folder, inner = above
    enter = f"echo $$ > {inner}/cgroup.procs && exec "
    command = [sys.executable, str(SCRIPT), backend, str(int(with_cgroup)), str(folder)]
    done = subprocess.run(
        ["sh", "-c", enter + '"$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    failed = "SandboxError retryable=True: the sandbox failed: the kernel ended a process"
    for name in ("run", "child"):
        assert found.pop(name).startswith(failed), (name, found)
    # that the rest was ended is known before the next run or by it
    ended = ("SandboxError retryable=True: the sandbox has ended", failed)
    assert found.pop("rest").startswith(ended), found
    # a process can end itself as the kernel would; nothing was counted, so that it is a result
    assert found == {"ends itself": "killed ended by SIGKILL", "after": "ok "}
