"""Docker launcher: starts the sandbox host in a container and carries its links."""

from __future__ import annotations

import functools
import io as bytes_io
import threading
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import docker
import requests

from agentrl.errors import SandboxError
from agentrl.sandbox.forkserver.channel import IOThread
from agentrl.sandbox.forkserver.launcher import HOST_FOLDER, OnEnd, OnFrame
from agentrl.sandbox.host import frames, mux

from . import containers, images
from .engine import Client, asked, connect
from .host import ContainerHost
from .settings import HOST_BYTES, SANDBOX_BYTES, DockerSettings

_READABLE = ("/opt", "/srv", "/app", "/go", "/nix")
_MEMORY_SHARE = 0.8  # of the engine's

# runs in any Python 3, so that one that is too old says so; the modules follow on standard input
_BOOT = """
import os, sys
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data
modules = take(int.from_bytes(take(8), "big"))
if sys.version_info < {oldest}:
    import json, struct
    frame = json.dumps({{"op": "too_old", "found": "%d.%d" % sys.version_info[:2], "sizes": []}}).encode()
    frame = struct.pack("!IQ", len(frame), 0) + frame
    os.write(1, struct.pack("!BII", {data}, {control}, len(frame)) + frame)
    sys.exit(0)
with open("/run/host.zip", "xb") as file:
    file.write(modules)
sys.path.insert(0, "/run/host.zip")
from host.relay import main
sys.path.remove("/run/host.zip")
main()
"""  # noqa: E501


@dataclass(frozen=True)
class DockerLauncher:
    """The host is the first process of a container.

    Attributes:
        settings: engine, runtime, and the container's size.
        image: the user's name of the image.
        disk_bytes, max_files: size of the file system that each sandbox has.
        memory_bytes: what all runs that may execute at one time may use together.
        processes: what all sandboxes may have together; interpreters that rest keep their threads.
    """

    settings: DockerSettings
    image: str
    disk_bytes: int
    max_files: int
    memory_bytes: int
    processes: int

    @property
    def host_settings(self) -> Mapping[str, Any]:
        return MappingProxyType(
            {
                "roots": containers.root_paths(self.settings),
                "readable": (*_READABLE, *self.settings.readable),
            }
        )

    def start(self, io: IOThread, on_frame: OnFrame, on_end: OnEnd) -> ContainerHost:
        client = connect(self.settings)
        try:
            containers.remove_orphaned(client)
            image = images.find(client, self.image)
            return self._start(client, image, io, on_frame, on_end)
        except BaseException:
            client.close()
            raise

    def _start(
        self, client: Client, image: images.Image, io: IOThread, on_frame: OnFrame, on_end: OnEnd
    ) -> ContainerHost:
        boot = _BOOT.format(oldest=images.OLDEST_PYTHON, data=mux.DATA, control=mux.CONTROL)
        container = containers.create(
            client,
            self.settings,
            image_id=image.id,
            command=[*image.python, "-I", "-c", boot],
            disk_bytes=self.disk_bytes,
            max_files=self.max_files,
            memory_bytes=self._container_bytes(client),
            processes=self.processes,
        )
        try:
            with asked("start a container"):
                try:
                    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                    attached = client.api.attach_socket(container, params=params)
                    exit_code = _watch_exit(client, container)
                    client.api.start(container)
                except docker.errors.APIError as error:
                    said = str(error.explanation or error)
                    if image.python[0] in said and not image.grafted:
                        raise images.lacks_python(
                            self.image, f"has no {image.python[0]}"
                        ) from error
                    raise containers.named_refusal(error, self.settings) from error
        except BaseException:
            containers.remove(client, container)
            raise
        hear = self._naming_old_python(on_frame)
        return ContainerHost(client, container, attached, exit_code, _bootstrap(), io, hear, on_end)

    def _naming_old_python(self, on_frame: OnFrame) -> OnFrame:
        def hear(header: frames.Header, blobs: list[bytes]) -> None:
            if header["op"] == "too_old":
                error = images.lacks_python(self.image, f"has Python {header['found']}")
                header = {"op": "refused", "setting": False, "why": str(error)}
            on_frame(header, blobs)

        return hear

    def _container_bytes(self, client: Client) -> int:
        with asked("tell its memory"):
            ceiling = int(client.info()["MemTotal"] * _MEMORY_SHARE)
        sandboxes = self.settings.max_sandboxes * (SANDBOX_BYTES + self.disk_bytes)
        return min(ceiling, HOST_BYTES + self.memory_bytes + sandboxes)


def _watch_exit(client: Client, container: str) -> Future[int]:
    """The exit code of a container, when it ends; an error where the engine went first."""
    exit_code: Future[int] = Future()

    def wait() -> None:
        try:
            answer = client.api.wait(container, timeout=None, condition="next-exit")
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            exit_code.set_exception(
                SandboxError(f"the container engine does not say how it ended: {error}")
            )
        else:
            exit_code.set_result(int(answer["StatusCode"]))

    # Blocks in the engine's answer for as long as the container lives, which outlasts this call.
    threading.Thread(target=wait, name="agentrl-container-exit", daemon=True).start()
    return exit_code


@functools.cache
def _bootstrap() -> bytes:
    """The length of an archive of the host's modules in 8 bytes, and the archive."""
    out = bytes_io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(HOST_FOLDER.rglob("*.py")):
            archive.write(path, f"host/{path.relative_to(HOST_FOLDER)}")
    return len(out.getvalue()).to_bytes(8, "big") + out.getvalue()
