"""Server: ``agentrl view`` as a process of its own, asked as a script asks it, and watched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.figures import ROOT

__all__ = ["Viewer", "viewing"]

_LINK = re.compile(r"(http://127\.0\.0\.1:\d+)/\?token=([\w-]+)(#/run/\w+)")
_TICKS = os.sysconf("SC_CLK_TCK")
_WAIT_S = 60.0


@dataclass(frozen=True)
class Viewer:
    """A viewer of one run.

    Args:
        pid: of its process.
        root: its address.
        token: the secret of its link.
        page: the fragment of the run's first page.
    """

    pid: int
    root: str
    token: str
    page: str

    def link(self, rest: str = "") -> str:
        """What opens a page of the run, such as ``/trajectories``."""
        return f"{self.root}/?token={self.token}{self.page}{rest}"

    def client(self) -> httpx.Client:
        """Asks for what lies below the run."""
        key = self.page.rpartition("/")[2]
        return httpx.Client(
            base_url=f"{self.root}/api/runs/{key}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=_WAIT_S,
        )

    def cpu_s(self) -> float:
        """Seconds of the processor so far, those of processes that it has ended included."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()  # a name may hold blanks
        return sum(map(int, fields[11:15])) / _TICKS

    def peak_mb(self) -> float:
        """The most memory that it has had, the mapped pages of its index included."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmHWM:\s*(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    def cpu_share(self, seconds: float) -> float:
        """Its share of a core, in percent, over the next ``seconds``."""
        before, started = self.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return 100 * (self.cpu_s() - before) / (time.monotonic() - started)


@contextmanager
def viewing(run: Path, cache: Path) -> Iterator[Viewer]:
    """A viewer that answers, ended with the block.

    Args:
        run: the run's folder.
        cache: where its index lies; a new folder makes it start cold.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl", "view", str(run), "--no-open"],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = _LINK.search(line)
        if found is None:
            raise RuntimeError(f"agentrl view must print its link first, got {line!r}")
        yield Viewer(process.pid, *found.groups())
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
