"""Machine: the available backends and container engine, and the running processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentrl.errors import MachineError
from agentrl.sandbox import BACKENDS, SandboxSpec
from agentrl.sandbox.docker import DockerSettings
from benchmarks.figures import Figures

__all__ = [
    "connected",
    "descendants",
    "living",
    "processor_s",
    "resident_bytes",
    "spec_of",
    "usable_backends",
]

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def spec_of(backend: str, image: str, **settings: Any) -> SandboxSpec:
    """A spec of a backend; the image where it has images."""
    row = BACKENDS.get(backend)
    return SandboxSpec(
        backend,
        require="none",
        image=image if row is not None and row.images else None,
        **settings,
    )


def usable_backends(figures: Figures, image: str) -> list[str]:
    """Backends that isolate and work here; of each other one the figures note why not."""
    usable = []
    for name, row in BACKENDS.items():
        if not row.isolates:
            continue
        try:
            spec_of(name, image).check()
            usable.append(name)
        except MachineError as error:
            figures.note(f"Left out: {error}")
    return usable


def connected(figures: Figures) -> Any:
    """A client of the container engine; None where none answers, which the figures then note."""
    from agentrl.sandbox.docker.containers import connect

    try:
        return connect(DockerSettings())
    except MachineError as error:
        figures.note(f"Left out, docker exec and docker run: {error}")
        return None


def descendants(pid: int) -> list[int]:
    """Everything below a process."""
    found = list[int]()
    pending = [pid]
    while pending:
        parent = pending.pop()
        for thread in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                below = [int(word) for word in thread.read_text().split()]
            except OSError:
                continue
            found += below
            pending += below
    return found


def living(text: str) -> list[int]:
    """Processes that are no zombies and whose command line holds the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (
                    (entry / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if text in line and state != "Z":
                found.append(int(entry.name))
    return found


def processor_s(pid: int) -> float:
    """Processor seconds of a process and of the children that it has waited for; 0 once it is
    gone.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


def resident_bytes(pids: list[int]) -> int:
    """Resident memory of processes, each page once for each of them."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return total
