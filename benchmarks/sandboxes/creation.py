"""Creation: seconds from the request to a fresh sandbox's first statement."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

from agentrl.sandbox import SandboxPool, SandboxSpec
from agentrl.sandbox.forkserver.hosts import close_servers
from agentrl.sandbox.forkserver.server import HostSettings
from benchmarks.figures import ROOT, Figures
from benchmarks.sandboxes.machine import spec_of, usable_backends

__all__ = ["COLD_MS", "WARM_MS", "measure"]

# one clock for all processes of a machine, containers included
CODE = "import time\nprint(time.monotonic())"
COLD_A_ROUND = 3
NEW_PROCESSES = 3
WARM_MS = 50.0
COLD_MS = 150.0
TARGETED = ("landlock", "bubblewrap")  # a container's start is the engine's

_NEW_PROCESS = """
import asyncio, sys, time
from agentrl.sandbox import SandboxSpec
asked = time.monotonic()
async def main():
    async with SandboxSpec(sys.argv[1], require="none", image=sys.argv[2] or None).build() as sandbox:
        print(float((await sandbox.run({code!r})).stdout) - asked)
asyncio.run(main())
"""  # noqa: E501


@dataclass(slots=True)
class Side:
    """One backend, over all its rounds; seconds.

    Attributes:
        warm: where the host of the process's sandboxes runs.
        cold: where it must be started.
        new: in a process that has just imported agentrl: the backend is probed first.
        lives: fresh sandboxes a second that were started, ran a statement and were closed, several
            at once.
    """

    spec: SandboxSpec
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    lives: list[float] = field(default_factory=list)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Rounds of every backend in turn, so that noise of the machine meets all of them."""
    backends = usable_backends(figures, arguments.image)
    sides = {name: Side(spec_of(name, arguments.image)) for name in backends}
    for _ in range(arguments.rounds):
        for side in sides.values():
            asyncio.run(_round(side, arguments.creations))
    for side in sides.values():
        side.new = [_in_new_process(side.spec) for _ in range(NEW_PROCESSES)]
    close_servers()
    for name, side in sides.items():
        _report(figures, name, side)


async def _round(side: Side, creations: int) -> None:
    capacity = HostSettings(confine=True).permits
    pool = SandboxPool(side.spec, max_running=capacity)
    try:
        for _ in range(COLD_A_ROUND):
            await asyncio.to_thread(close_servers)
            side.cold.append(await _first_statement_s(pool))
        side.warm += [await _first_statement_s(pool) for _ in range(creations)]
        start = time.monotonic()
        await asyncio.gather(*(_first_statement_s(pool) for _ in range(creations)))
        side.lives.append(creations / (time.monotonic() - start))
    finally:
        await pool.close()


async def _first_statement_s(pool: SandboxPool) -> float:
    """Seconds from asking the pool to the first statement.

    Raises:
        RuntimeError: the code did not print when it was.
    """
    asked = time.monotonic()
    async with pool.session() as sandbox:
        result = await sandbox.run(CODE)
    if result.status != "ok":
        raise RuntimeError(f"an execution went wrong: {result}")
    return float(result.stdout) - asked


def _in_new_process(spec: SandboxSpec) -> float:
    command = [
        sys.executable,
        "-c",
        _NEW_PROCESS.format(code=CODE),
        spec.backend,
        spec.image or "",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _report(figures: Figures, name: str, side: Side) -> None:
    warm_ms = 1e3 * statistics.median(side.warm)
    cold_ms = 1e3 * statistics.median(side.cold)
    if name in TARGETED:
        figures.at_most(
            f"{name}: fresh sandbox to its first statement, warm, p50",
            warm_ms,
            "ms",
            WARM_MS,
        )
        figures.at_most(
            f"{name}: the same, cold (its host is started), p50", cold_ms, "ms", COLD_MS
        )
    else:
        figures.report(
            f"{name}: fresh sandbox to its first statement, warm, p50", warm_ms, "ms"
        )
        figures.report(
            f"{name}: the same, cold (its container is started), p50", cold_ms, "ms"
        )
    figures.report(
        f"{name}: the same, warm, p95",
        1e3 * sorted(side.warm)[int(0.95 * (len(side.warm) - 1))],
        "ms",
    )
    figures.report(
        f"{name}: the same, in a new process that probes first",
        1e3 * statistics.median(side.new),
        "ms",
    )
    figures.report(
        f"{name}: fresh sandboxes, one statement each", statistics.median(side.lives), "/s"
    )
