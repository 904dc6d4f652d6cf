"""Docker settings: what the docker backend is told, without the Docker SDK."""

from __future__ import annotations

import sys
from typing import Annotated, Self

from pydantic import Field, model_validator

from agentrl.sandbox.host.confine.uids import SLOTS
from agentrl.types.section import Count, Listed, Positive, Section

LOCAL_PYTHON = "agentrl-python:local"
"""The image that ``prepare`` makes of the interpreter that runs it, where no registry can be
reached.
"""

DEFAULT_IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
# of the container's memory, for the host itself
HOST_BYTES = 128 * 2**20
# for each sandbox, whose slot and resting interpreter take about 6 MiB
SANDBOX_BYTES = 16 * 2**20


_SCHEMES = ("unix", "tcp", "http", "https")


class DockerSettings(Section):
    """The engine and container of the ``docker`` backend."""

    host: str | None = None
    """Address of the engine, as ``unix:///run/user/1000/podman/podman.sock``; by default
    ``DOCKER_HOST``, then the current Docker context.
    """
    runtime: str | None = None
    """Runtime of the engine, as ``runsc`` for gVisor; by default the engine's own."""
    memory_bytes: Count | None = None
    """Memory of the container, its sandboxes' files included; by default enough for every execution
    at its limit, for every sandbox's files and its resting interpreter, in four fifths of the
    engine's memory.
    """
    cpus: Positive | None = None
    """Processor cores of the container; by default all."""
    max_sandboxes: Annotated[int, Field(ge=1, le=SLOTS)] = 128
    """Sandboxes of one container, each with a file system of its own; no process may ask for more
    at one time.
    """
    readable: Listed[str] = ()
    """Folders of the image that the code may read and execute beside ``/usr``, ``/opt`` and their
    like.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host is not None and self.host.partition("://")[0] not in _SCHEMES:
            raise self.broken(
                "host",
                f" must begin with unix://, tcp://, http:// or https://, got {self.host!r}; the "
                "socket of an engine behind ssh can be forwarded: ssh -nNT -L "
                "/tmp/engine.sock:/var/run/docker.sock HOST",
            )
        for folder in self.readable:
            if not folder.startswith("/") or folder.rstrip("/") in (
                "",
                "/proc",
                "/sys",
                "/dev",
            ):
                raise self.broken(
                    "readable",
                    f": {folder!r} must be an absolute folder below / and none of the kernel's own "
                    "(/proc, /sys, /dev)",
                )
        return self
