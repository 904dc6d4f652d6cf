"""Soak: thousands of executions, a tenth of them hostile, without loss or mix-up."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import AgentRLError
from agentrl.sandbox import DockerSettings, ExecResult, Limits, SandboxPool
from agentrl.sandbox.forkserver.hosts import close_servers
from agentrl.sandbox.forkserver.launcher import FOLDER_PREFIX
from agentrl.sandbox.owner_id import Owner
from benchmarks.figures import Figures
from benchmarks.sandboxes.machine import descendants, resident_bytes, spec_of

__all__ = ["measure"]

AT_ONCE = 16
RUNS_A_SESSION = 10
HOSTILE_SHARE = 0.1
WARM_UP_SHARE = 0.2  # of the executions, before memory is first looked at
LIMITS = Limits(
    wall_s=20.0,
    memory_bytes=64 * 2**20,
    processes=12,
    output_bytes=20_000,
    file_bytes=2**20,
    disk_bytes=4 * 2**20,
)

# what each tries, after it has printed whose run it is; the seconds it may take
HOSTILE: dict[str, tuple[str, float | None]] = {
    "hangs": ("while True: pass", 0.5),
    "ignores signals": (
        "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        0.5,
    ),
    "stops itself": ("import os\nos.kill(os.getpid(), 19)", 0.5),
    "forks": ("import os\ntry:\n    while True: os.fork()\nexcept OSError: pass", 1.0),
    "leaves a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: "
        "time.sleep(600)\n    os._exit(0)",
        None,
    ),
    "takes memory": ("x = []\nwhile True: x.append(bytearray(2**20))", None),
    "floods": ("while True: print('x' * 1000)", None),
    "fills the disk": (
        "n = 0\nwhile True:\n    open(str(n), 'wb').write(b'x' * 2**19); n += 1",
        5.0,
    ),
    "crashes": ("import ctypes\nctypes.string_at(0)", None),
    "kills all": ("import os\nos.kill(-1, 9)", None),
    "forges": (
        "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'\\0' * 64)\n    except "
        "OSError: pass",
        None,
    ),
    "reads outside": (
        "try: open('/etc/shadow'); print('BREACH')\nexcept OSError: pass",
        None,
    ),
}


@dataclass(slots=True)
class Seen:
    """What became of the executions."""

    asked: int = 0
    answered: int = 0
    wrong: int = 0
    breaches: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def take(self, token: str, hostile: str | None, result: ExecResult) -> None:
        """One result, which must be that of the run with this token."""
        self.answered += 1
        self.statuses[f"{hostile or 'benign'}: {result.status}"] += 1
        # before it could say whose run it is
        cut_short = result.status == "timeout" and not result.stdout
        own = result.stdout.startswith(f"{token}\n".encode()) or (
            hostile is not None and cut_short
        )
        plain = hostile is not None or (
            result.status == "ok" and result.stdout == f"{token}\n{token}\n".encode()
        )
        self.wrong += not (own and plain)
        self.breaches += b"BREACH" in result.stdout


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """The soak on one backend."""
    mounts = _mounts()
    groups = _groups()
    seen = Seen()
    start = time.perf_counter()
    early, late, backend = asyncio.run(_soak(seen, arguments))
    seconds = time.perf_counter() - start
    close_servers()
    time.sleep(1.0)
    figures.note(f"The soak ran on {backend}: {dict(sorted(seen.statuses.items()))}.")
    if seen.failures:
        figures.note(f"Failures of the soak's sandboxes: {dict(seen.failures)}.")
    figures.at_least("soak: executions", seen.asked, "", arguments.soak_executions)
    figures.report("soak: executions, hostile ones included", seen.answered / seconds, "/s")
    figures.at_most("soak: executions without a result", seen.asked - seen.answered, "", 0)
    figures.at_most("soak: results of another run, or wrong", seen.wrong, "", 0)
    figures.at_most("soak: breaches", seen.breaches, "", 0)
    figures.at_most("soak: processes left", len(descendants(os.getpid())), "", 0)
    figures.at_most(
        "soak: folders left",
        len(list(Path("/tmp").glob(f"{FOLDER_PREFIX}{os.getpid()}-*"))),
        "",
        0,
    )
    figures.at_most("soak: mounts left", len(_mounts() - mounts), "", 0)
    figures.at_most("soak: cgroups left", len(_groups() - groups), "", 0)
    if backend == "docker":
        figures.at_most("soak: containers left", _containers(), "", 0)
        figures.note("The memory of a host in a container is not looked at.")
    else:
        figures.report("soak: memory of the host after the warm-up", early / 2**20, "MiB")
        figures.at_most(
            "soak: change of the host's memory since", 100 * abs(late / early - 1), "%", 5
        )


async def _soak(seen: Seen, arguments: argparse.Namespace) -> tuple[int, int, str]:
    """The host's memory after the warm-up and at the end, both while nothing runs, and the
    backend.
    """
    spec = spec_of(
        arguments.soak_backend, arguments.image, limits=LIMITS, max_executing=AT_ONCE
    )
    backend = spec.check().backend
    pool = SandboxPool(spec, max_running=AT_ONCE)
    rng = random.Random(arguments.seed)
    warm_up = int(arguments.soak_executions * WARM_UP_SHARE)
    resident = []
    for count in (warm_up, arguments.soak_executions - warm_up):
        sessions = iter(range(-(-count // RUNS_A_SESSION)))
        await asyncio.gather(*(_work(pool, sessions, rng, seen) for _ in range(AT_ONCE)))
        gc.collect()
        await asyncio.sleep(1.0)
        resident.append(resident_bytes(descendants(os.getpid())))
        print(f"{seen.answered} executions", flush=True)
    await pool.close()
    return resident[0], resident[1], backend


async def _work(
    pool: SandboxPool, sessions: object, rng: random.Random, seen: Seen
) -> None:
    for _ in sessions:  # type: ignore[attr-defined]  # shared by the workers
        async with pool.session() as sandbox:
            for _ in range(RUNS_A_SESSION):
                token = f"{rng.getrandbits(64):016x}"
                hostile = (
                    rng.choice(list(HOSTILE)) if rng.random() < HOSTILE_SHARE else None
                )
                code, timeout_s = (
                    HOSTILE[hostile] if hostile else (f"print({token!r})", None)
                )
                seen.asked += 1
                try:
                    result = await sandbox.run(
                        f"print({token!r}, flush=True)\n{code}", timeout_s=timeout_s
                    )
                except AgentRLError as error:
                    seen.failures[f"{hostile}: {error}"] += 1
                    await sandbox.reset()
                else:
                    seen.take(token, hostile, result)


def _containers() -> int:
    """Of this process, running or not."""
    from agentrl.sandbox.docker.containers import connect

    client = connect(DockerSettings())
    try:
        own = str(Owner.current())
        return sum(
            own in found["Labels"].values() for found in client.api.containers(all=True)
        )
    finally:
        client.close()


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines if "agentrl" in line}


def _groups() -> set[str]:
    return {path for path, _, _ in os.walk("/sys/fs/cgroup") if "agentrl" in path}
