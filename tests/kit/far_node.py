"""Far node: two nodes of Ray on one machine, each in a network namespace (root, iproute2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NEAR, FAR = "10.77.0.1", "10.77.0.2"
ADDRESS = f"{NEAR}:6379"
"""Of the head, which is near; nobody else is in its namespace."""


def run(*command: str) -> None:
    """Raises where it fails."""
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def two_namespaces(name: str) -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by a link; the first one's end of it is ``near``."""
    spaces = (f"{name}-near", f"{name}-far")
    with ExitStack() as made:
        for space in spaces:
            run("ip", "netns", "add", space)
            made.callback(run, "ip", "netns", "delete", space)
        ends = (
            "netns",
            spaces[0],
            "type",
            "veth",
            "peer",
            "name",
            "far",
            "netns",
            spaces[1],
        )
        run("ip", "link", "add", "near", *ends)
        for space, end, address in zip(spaces, ("near", "far"), (NEAR, FAR), strict=True):
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                run("ip", "-n", space, "link", "set", device, "up")
        yield spaces


@contextmanager
def ray_node(space: str, folder: Path, address: str, *options: str) -> Iterator[None]:
    """A node of Ray in a namespace, the head with ``--head``; it and what it started end with the
    block."""
    folder.mkdir()
    command = [
        "ip",
        "netns",
        "exec",
        space,
        str(Path(sys.executable).with_name("ray")),
        "start",
    ]
    command += ["--block", f"--temp-dir={folder}", "--disable-usage-stats", *options]
    command += [f"--node-ip-address={address}"]
    command += ["--port=6379"] if "--head" in options else [f"--address={ADDRESS}"]
    with (folder / "ray.log").open("wb") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "RAY_AUTH_MODE": "disabled"}
        )
    try:
        yield
    finally:
        pids = subprocess.run(
            ["ip", "netns", "pids", space], check=True, capture_output=True, text=True
        ).stdout.split()
        for pid in pids:
            subprocess.run(["kill", "-KILL", pid], check=False)
        started.wait()
