"""Survivors: the processes that are left 5 s after SIGKILL of the sandboxes' owner."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from agentrl.sandbox.forkserver.launcher import FOLDER_PREFIX
from benchmarks.figures import Figures
from benchmarks.sandboxes.machine import living, usable_backends

__all__ = ["OWNER", "measure"]

AFTER_S = 5.0
OWNER = """
import asyncio, sys
from benchmarks.sandboxes.machine import spec_of

async def main(backend, image, marker):
    async with spec_of(backend, image).build() as sandbox:
        await sandbox.run("pass")
        print("ready", flush=True)
        script = f"(setsid sh -c 'sleep 4321; : {marker}' &) ; sleep 4321; : {marker}"
        await sandbox.run(argv=["sh", "-c", script], timeout_s=600)

asyncio.run(main(*sys.argv[1:]))
"""


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Each backend that works here once."""
    for backend in usable_backends(figures, arguments.image):
        marker = f"marker-{os.getpid()}-{os.urandom(4).hex()}"
        command = [sys.executable, "-c", OWNER, backend, arguments.image, marker]
        owner = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
        assert owner.stdout is not None
        try:
            owner.stdout.readline()
            running = _wait_for_two(marker)
            owner.kill()
            owner.wait()
            time.sleep(AFTER_S)
        finally:
            owner.kill()
            owner.communicate()
        folders = len(list(Path("/tmp").glob(f"{FOLDER_PREFIX}{owner.pid}-*")))
        figures.report(
            f"{backend}: processes of the run when its owner was killed", running, ""
        )
        figures.at_most(
            f"{backend}: processes left after {AFTER_S:g} s", len(living(marker)), "", 0
        )
        figures.at_most(f"{backend}: folders left after {AFTER_S:g} s", folders, "", 0)


def _wait_for_two(marker: str) -> int:
    end = time.monotonic() + 60
    while len(living(f": {marker}")) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    return len(living(f": {marker}"))
