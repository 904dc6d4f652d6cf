"""Ranks of a process group as processes of a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.http import free_port

REPOSITORY = Path(__file__).parents[2]


def run_ranks(module: str, size: int, *arguments: str, timeout_s: float = 170) -> None:
    """Runs ``python -m module RANK SIZE PORT ARGUMENTS...`` on every rank; all must succeed."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(size), str(port), *arguments],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [rank.communicate(timeout=timeout_s)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(errors)
