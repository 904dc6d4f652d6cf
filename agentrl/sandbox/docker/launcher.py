"""Docker launcher: starts the sandbox host in a container, and links its owner to it over the
stream that is attached to the container.
"""

from __future__ import annotations

import functools
import io as bytes_io
import struct
import threading
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import docker
import requests

from agentrl.errors import SandboxError
from agentrl.sandbox.forkserver.channel import OnEnd, OnFrame, Stream
from agentrl.sandbox.forkserver.launcher import HOST_FOLDER
from agentrl.sandbox.host import frames
from agentrl.types.loop_thread import LoopThread

from . import containers, images
from .containers import Client, asked, connect

_STDERR = 2
# of the engine's attached stream
_HEAD = struct.Struct(">BxxxI")
_KEPT_STDERR_BYTES = 4096
# in which the engine says how a container ended whose stream has ended
_EXIT_S = 2.0
_SIGKILLED = 137
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
    def frame(header, *blobs):
        head = json.dumps(dict(header, sizes=list(map(len, blobs)))).encode()
        return struct.pack("!IQ", len(head), sum(map(len, blobs))) + head + b"".join(blobs)
    refusal = frame({{"op": "refused", "setting": False, "why": why}})
    os.write(1, frame({{"op": "data", "link": {control}}}, refusal))
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

    def start(self, io: LoopThread, on_frame: OnFrame, on_end: OnEnd) -> ContainerHost:
        client = connect(self.spec.settings)
        try:
            containers.remove_orphaned(client)
            image = images.find(client, self.image)
            return self._start(client, image, io, on_frame, on_end)
        except BaseException:
            # A start that fails leaves no connection to the engine open.
            client.close()
            raise

    def _start(
        self,
        client: Client,
        image: images.EngineImage,
        io: LoopThread,
        on_frame: OnFrame,
        on_end: OnEnd,
    ) -> ContainerHost:
        boot = _BOOT.format(
            oldest=images.OLDEST_PYTHON,
            control=frames.CONTROL,
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
            # The container has no host yet that would end it.
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


@dataclass(eq=False)
class ContainerLink:
    """Frames to and from one process of the container."""

    host: ContainerHost
    number: int
    on_frame: OnFrame
    on_end: OnEnd
    decoder: frames.FrameDecoder = field(default_factory=frames.FrameDecoder)

    def send(self, header: frames.Header, blobs: Sequence[bytes] = ()) -> None:
        data = frames.encode(header, blobs)
        self.host.stream.write(frames.on_link(self.number, "data", data))

    def close(self) -> None:
        self.host.hang_up(self.number)

    def abandon(self) -> None:
        self.host.stream.abandon()

    def on_data(self, data: bytes) -> None:
        """What the process wrote."""
        for header, blobs in self.decoder.feed(data):
            self.on_frame(header, blobs)


class ContainerHost:
    """A host whose container was started.

    Args:
        client: the way to the engine; closed in :meth:`clear`.
        container: its id.
        attached: the socket attached to its standard streams.
        exit_code: known when the container has ended.
        bootstrap: what its first process reads before anything else.
        io, on_frame, on_end: as in ``Launcher.start``.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        attached: Any,
        exit_code: Future[int],
        bootstrap: bytes,
        io: LoopThread,
        on_frame: OnFrame,
        on_end: OnEnd,
    ) -> None:
        self._client = client
        self._container = container
        # the SDK's wrapper closes the socket when it is collected
        self._attached = attached
        self._exit_code = exit_code
        self._io = io
        self._stderr = bytearray()
        self._buffer = bytearray()
        self._decoder = frames.FrameDecoder()
        # Guards _links: slots are opened on callers' threads, and end on the I/O thread.
        self._lock = threading.Lock()
        self._links = {
            frames.CONTROL: ContainerLink(self, frames.CONTROL, on_frame, on_end)
        }
        self.control = self._links[frames.CONTROL]
        self.stream = Stream(
            io, getattr(attached, "_sock", attached), self._on_data, self._on_stream_end
        )
        self.stream.write(bootstrap)

    def open_slot(self, number: int, on_frame: OnFrame, on_end: OnEnd) -> ContainerLink:
        link = ContainerLink(self, number + 1, on_frame, on_end)
        with self._lock:
            self._links[number + 1] = link
        self.stream.write(frames.on_link(number + 1, "open"))
        return link

    def hang_up(self, number: int) -> None:
        """Close a link; the supervisor's ends everything."""
        if number == frames.CONTROL:
            self.stream.close()
            return
        self.stream.write(frames.on_link(number, "end"))
        self._io.call(lambda: self._end_link(number))

    def said(self) -> str:
        """Why the container ended, as far as the engine and its standard error tell."""
        said = self._stderr.decode(errors="replace").strip()
        try:
            code = self._exit_code.result(_EXIT_S)
        except FutureTimeout:
            return said or "its stream was closed"
        except SandboxError as error:
            return said or str(error)
        if code == _SIGKILLED:
            return (
                "its container was killed, by its limit DockerSettings.memory_bytes or from "
                f"outside; {said}"
            )
        return f"its container ended with exit code {code}{': ' + said if said else ''}"

    def end(self, patience_s: float) -> None:
        try:
            self._exit_code.result(patience_s)
        except FutureTimeout:
            with asked("remove a container"):
                containers.remove(self._client, self._container)
        except SandboxError:
            # the engine is gone, and what it left is reaped when it is back
            return

    def clear(self, facts: Mapping[str, Any]) -> None:
        """The engine removes the container with all that it holds."""
        self._attached.close()
        self._client.close()

    def _on_data(self, data: bytes) -> None:
        self._buffer += data
        for (source, _), part in frames.cut(self._buffer, _HEAD, lambda _, length: length):
            if source == _STDERR:
                self._stderr = (self._stderr + part)[-_KEPT_STDERR_BYTES:]
                continue
            for header, (body,) in self._decoder.feed(part):
                if header["op"] == "end":
                    self._end_link(header["link"])
                    continue
                with self._lock:
                    link = self._links.get(header["link"])
                if link is not None:
                    link.on_data(body)

    def _end_link(self, number: int) -> None:
        with self._lock:
            link = self._links.pop(number, None)
        if link is not None:
            link.on_end()

    def _on_stream_end(self) -> None:
        with self._lock:
            links = self._links
            self._links = {}
        # the supervisor's last, as its end is everyone's
        for number in sorted(links, reverse=True):
            links[number].on_end()
