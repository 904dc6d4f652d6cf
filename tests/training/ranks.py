"""Ranks of a process group as processes of a test."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

from tests.kit.forks import FORKS
from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S

REPOSITORY = Path(__file__).parents[2]
TAKEN = "address already in use"
"""What gloo says where another process was given the port meanwhile."""
TRIES = 3


def run_ranks(module: str, size: int, *arguments: str) -> None:
    """Runs ``python -m module RANK SIZE PORT ARGUMENTS...`` on every rank; all must succeed.

    One that takes long says so on standard error as it goes on: silence alone is a hang.
    """
    for _ in range(TRIES):
        codes, said = _run_once(module, size, *arguments)
        if TAKEN not in said.lower():
            break
    assert codes == [0] * size, said


def _run_once(module: str, size: int, *arguments: str) -> tuple[list[int | None], str]:
    """Exit codes, and what was said."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, str(rank)) for rank in range(size)]
        ranks = [
            FORKS.Process(
                target=_rank, args=(module, (rank, size, port, *arguments), str(log))
            )
            for rank, log in enumerate(logs)
        ]
        try:
            for rank in ranks:
                rank.start()
            said, end = -1, 0.0
            while any(rank.is_alive() for rank in ranks) and (
                said < 0 or time.monotonic() < end
            ):
                now = sum(log.stat().st_size for log in logs if log.exists())
                if now > said:
                    said, end = now, time.monotonic() + DEADLINE_S
                wait([rank.sentinel for rank in ranks if rank.is_alive()], timeout=1.0)
            codes = [rank.exitcode for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
        return codes, "\n".join(log.read_text() for log in logs if log.exists())


def _rank(module: str, arguments: tuple[object, ...], log: str) -> None:
    os.chdir(REPOSITORY)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    sys.argv = [module, *map(str, arguments)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
