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
from agentrl.sandbox.host import mux

from . import containers, images
from .engine import Client, asked, connect
from .host import ContainerHost

_READABLE = ("/opt", "/srv", "/app", "/go", "/nix")

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
    why = {too_old!r}.replace("VERSION", "%d.%d" % sys.version_info[:2])
    frame = json.dumps({{"op": "refused", "setting": False, "why": why, "sizes": []}}).encode()
    frame = struct.pack("!IQ", len(frame), 0) + frame
    os.write(1, struct.pack("!BII", {data}, {control}, len(frame)) + frame)
    sys.exit(0)
with open("/run/host.zip", "xb") as file:
    file.write(modules)
sys.path.insert(0, "/run/host.zip")
from host.relay import main
sys.path.remove("/run/host.zip")
main()
"""


@dataclass(frozen=True)
class DockerLauncher:
    """The host is the first process of a container.

    Attributes:
        spec: of the container.
        image: the user's name of the image.
    """

    spec: containers.ContainerSpec
    image: str

    @property
    def host_settings(self) -> Mapping[str, Any]:
        return MappingProxyType(
            {
                "roots": containers.root_paths(self.spec.settings),
                "readable": (*_READABLE, *self.spec.settings.readable),
            }
        )

    def start(self, io: IOThread, on_frame: OnFrame, on_end: OnEnd) -> ContainerHost:
        client = connect(self.spec.settings)
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
        boot = _BOOT.format(
            oldest=images.OLDEST_PYTHON,
            data=mux.DATA,
            control=mux.CONTROL,
            too_old=str(images.lacks_python(self.image, "has Python VERSION")),
        )
        container = containers.create(
            client, self.spec, image.id, [*image.python, "-I", "-c", boot]
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
                    raise containers.named_refusal(error, self.spec.settings) from error
        except BaseException:
            containers.remove(client, container)
            raise
        return ContainerHost(
            client, container, attached, exit_code, _bootstrap(), io, on_frame, on_end
        )


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
