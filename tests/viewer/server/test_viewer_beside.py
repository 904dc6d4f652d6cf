"""A viewer beside a run: it waits for the run, and ends with the process that started it."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agentrl.store import RunDirectory
from agentrl.viewer.beside import viewer_beside
from tests.kit.waiting import DEADLINE_S, until

STARTER = """
import sys, time
from pathlib import Path
from agentrl.viewer.beside import viewer_beside
with viewer_beside(Path(sys.argv[1]), lambda line: print(line, flush=True), terminal=False):
    time.sleep(600)
"""


def link_of(line: str) -> str:
    return line.removeprefix("watch the run at ")


def assert_ends(link: str) -> None:
    def answers() -> bool:
        try:
            httpx.get(link, timeout=DEADLINE_S)
        except httpx.TransportError:
            return False
        return True

    until(lambda: not answers())


def test_it_waits_for_the_run_and_ends_with_the_block(tmp_path: Path) -> None:
    lines: queue.Queue[str] = queue.Queue()
    with viewer_beside(tmp_path / "run", lines.put, terminal=False):
        RunDirectory.create(tmp_path / "run", {"seed": 1})
        link = link_of(lines.get(timeout=DEADLINE_S))
        assert httpx.get(link).status_code == 303
    assert_ends(link)


@pytest.mark.slow
def test_it_ends_where_no_run_ever_comes(tmp_path: Path) -> None:
    began = time.monotonic()
    with viewer_beside(tmp_path / "run", print, terminal=False):
        pass
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_it_outlives_no_process_that_was_killed(run: RunDirectory) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(run.root)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    with starter.stdout as lines:
        link = link_of(lines.readline().strip())
        assert httpx.get(link).status_code == 303
        starter.kill()
        starter.wait()
        assert_ends(link)
