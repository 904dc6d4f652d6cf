from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, MachineError
from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.docker import DockerSettings
from agentrl.sandbox.docker.containers import connect


@contextmanager
def listening(path: Path, answer: bytes = b"") -> Iterator[None]:
    """A unix socket on which something answers every request in the same way."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def named(path: Path) -> DockerSettings:
    return DockerSettings(host=f"unix://{path}")


def test_an_absent_socket_is_named_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(
        MachineError, match=r"/absent: the socket does not exist; start it .*DOCKER_HOST"
    ):
        connect(named(tmp_path / "absent"))


def test_the_same_is_said_of_a_sandbox(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="the socket does not exist"):
        SandboxSpec("docker", docker=named(tmp_path / "absent")).build()


def test_a_socket_that_nobody_serves_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    with pytest.raises(MachineError, match="the connection is refused; start it"):
        connect(named(tmp_path / "s"))


@pytest.mark.skipif(os.getuid() != 0, reason="giving up rights needs root")
def test_a_socket_that_this_user_may_not_use_is_named_with_the_mend(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with listening(tmp_path / "s"):
        os.seteuid(65534)
        try:
            with pytest.raises(
                MachineError,
                match=r"permission denied; let this user speak to it \(`sudo usermod",
            ):
                connect(named(tmp_path / "s"))
        finally:
            os.seteuid(0)


def test_an_engine_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    body = json.dumps({"ApiVersion": "1.38", "Version": "18.06"}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"  # noqa: E501
    with (
        listening(tmp_path / "s", head % len(body) + body),
        pytest.raises(
            MachineError, match=r"speaks Docker API 1\.38; 1\.40 .* or later is needed"
        ),
    ):
        connect(named(tmp_path / "s"))


def test_what_does_not_speak_the_protocol_is_named(tmp_path: Path) -> None:
    with (
        listening(tmp_path / "s", b"220 smtp\r\n"),
        pytest.raises(MachineError, match="no container engine answers"),
    ):
        connect(named(tmp_path / "s"))


def test_an_unknown_context_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "no-such-context")
    with pytest.raises(MachineError, match=r"no-such-context"):
        connect(DockerSettings())


def test_an_engine_behind_ssh_is_told_how_to_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://user@far")
    with pytest.raises(MachineError, match=r"forward its socket .*docker\.sock user@far"):
        connect(DockerSettings())


@pytest.mark.docker
def test_the_current_context_is_followed(
    engine_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"mine").hexdigest()
    folder.mkdir(parents=True)
    meta = {
        "Name": "mine",
        "Metadata": {},
        "Endpoints": {"docker": {"Host": engine_host, "SkipTLSVerify": False}},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "mine"}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    client = connect(DockerSettings())
    assert client.ping()
    client.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "ssh://far"},
        {"host": "/var/run/docker.sock"},
        {"max_sandboxes": 0},
        {"max_sandboxes": 100_000},
        {"cpus": 0.0},
        {"cpus": float("inf")},
        {"readable": ("relative",)},
        {"readable": ("/",)},
        {"readable": ("/proc/",)},
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"DockerSettings.{next(iter(changes))}"):
        DockerSettings(**changes)  # type: ignore[arg-type]


def test_an_image_needs_a_backend_with_images() -> None:
    with pytest.raises(
        ConfigError, match=r"SandboxSpec\.image='gcc:14' needs a backend with images"
    ):
        SandboxSpec("landlock", image="gcc:14")
