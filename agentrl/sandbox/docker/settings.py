"""What the docker backend is told: picklable, and without the Docker SDK."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.sandbox.host.confine.uids import SLOTS

LOCAL_PYTHON = "agentrl-python:local"
"""The image that ``prepare`` makes of the interpreter that runs it, where no registry can be reached."""

DEFAULT_IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
HOST_BYTES = 128 * 2**20  # of the container's memory, for the host itself
SANDBOX_BYTES = 16 * 2**20  # for each sandbox, whose slot and resting interpreter take about 6 MiB


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Which engine and runtime, and how large the container is.

    Attributes:
        runtime: the engine's runtime, as ``runsc`` for gVisor; None takes the engine's own.
        host: the engine's address, as ``unix:///run/user/1000/podman/podman.sock``; None asks DOCKER_HOST, then the
            current Docker context.
        memory_bytes: memory of the container, files of its sandboxes included; None has room for every run at its
            limit, for every sandbox's files and its resting interpreter, in four fifths of the engine's memory.
        cpus: processor cores that the container may use; None all.
        max_sandboxes: sandboxes of one container, each with a file system of its own.
        readable: folders of the image that the code may read and execute beside ``/usr``, ``/bin``, ``/lib``,
            ``/opt``, ``/srv``, ``/app``, ``/go`` and ``/nix``.

    Raises:
        ConfigError: a value that no engine takes.
    """

    runtime: str | None = None
    host: str | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    max_sandboxes: int = 128
    readable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.host is not None and self.host.partition("://")[0] not in (
            "unix",
            "tcp",
            "http",
            "https",
        ):
            raise ConfigError(
                f"sandbox.docker.host must begin with unix://, tcp://, http:// or https://, got {self.host!r}; the "
                "socket of an engine behind ssh can be forwarded: "
                "ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock HOST"
            )
        if not 1 <= self.max_sandboxes <= SLOTS:
            raise ConfigError(
                f"sandbox.docker.max_sandboxes must be from 1 to {SLOTS}, got {self.max_sandboxes}"
            )
        if self.cpus is not None and not (math.isfinite(self.cpus) and self.cpus > 0):
            raise ConfigError(
                f"sandbox.docker.cpus must be a number above 0, got {self.cpus!r}; leave it out for all"
            )
        for folder in self.readable:
            if not folder.startswith("/") or folder.rstrip("/") in ("", "/proc", "/sys", "/dev"):
                raise ConfigError(
                    f"sandbox.docker.readable: {folder!r} must be an absolute folder below / and none of the kernel's "
                    "own (/proc, /sys, /dev)"
                )
