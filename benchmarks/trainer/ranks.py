"""Ranks: processes of a benchmark's process group, and the memory of a process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT

__all__ = ["RANKS", "MemoryPeak", "run_ranks"]

RANKS = 2


class MemoryPeak:
    """Growth of a process's anonymous memory from now until ``close``, bytes.

    Args:
        pid: of the process; None for this one.
        interval_s: between two samples.
    """

    def __init__(self, pid: int | None = None, interval_s: float = 0.01) -> None:
        self._file = Path("/proc", "self" if pid is None else str(pid), "smaps_rollup")
        self._interval_s = interval_s
        self._before = self._peak = self._sample()
        self._done = threading.Event()
        # samples beside the measured block; ended by ``close``
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(self._interval_s):
            self._peak = max(self._peak, self._sample())

    def _sample(self) -> int:
        try:
            text = self._file.read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):  # another process that has ended
            return 0
        lines = (line for line in text.splitlines() if line.startswith("Anonymous:"))
        return 1024 * sum(int(line.split()[1]) for line in lines)

    def close(self) -> int:
        """Ends sampling; the growth at its peak."""
        self._done.set()
        self._thread.join()
        return max(self._peak, self._sample()) - self._before


def run_ranks(module: str, *arguments: str, size: int = RANKS) -> list[Any]:
    """Runs ``python -m module --rank R --port P ARGUMENTS`` on ``size`` ranks; their JSON answers,
    each the last line of its output.

    Raises:
        RuntimeError: a rank failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, "--rank", str(rank), "--port", port, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank of {module} failed; its message is above")
    return [json.loads(output.splitlines()[-1]) for output in outputs]
