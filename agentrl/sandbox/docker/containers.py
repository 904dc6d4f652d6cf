"""Containers: the engine that runs them, the hardened one of a host, and those of dead owners."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import docker
import requests

from agentrl.errors import MachineError, SandboxError
from agentrl.sandbox.owner_id import Owner, orphaned

from .settings import HOST_BYTES, SANDBOX_BYTES, DockerSettings

# docker.DockerClient, which has no types
Client = Any

# Docker 19.03, podman 3
_OLDEST_API = (1, 40)
_TIMEOUT_S = 60
_USUAL_HOST = "unix:///var/run/docker.sock"
_answered: set[str] = set()
# guards _answered: hosts start on threads of their own
_lock = threading.Lock()


def connect(settings: DockerSettings) -> Client:
    """A client of the engine that the settings, DOCKER_HOST or the current Docker context name.

    Raises:
        MachineError: no engine answers there, or it is too old; with the remedy.
        SandboxError: one that answered this process before does not answer now.
    """
    way = _way(settings)
    place = str(way["base_url"])
    if place.startswith("ssh://"):
        raise MachineError(
            f"the container engine at {place} is behind ssh; forward its socket and name that: "
            f"ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock {place.removeprefix('ssh://')} & "
            "export DOCKER_HOST=unix:///tmp/engine.sock"
        )
    oldest = ".".join(map(str, _OLDEST_API))
    try:
        with closing(_open(way, oldest)) as client:
            version = str(client.api.version(api_version=False)["ApiVersion"])
    except (
        docker.errors.DockerException,
        requests.RequestException,
        OSError,
        ValueError,
    ) as error:
        why, remedy = _reason(error, place)
        with _lock:
            answered = place in _answered
        if answered:
            raise SandboxError(
                f"the container engine at {place} answered before and does not now: {why}"
            ) from error
        raise MachineError(
            f"no container engine answers at {place}: {why}; {remedy}"
        ) from error
    if tuple(map(int, version.split("."))) < _OLDEST_API:
        raise MachineError(
            f"the container engine at {place} speaks Docker API {version}; {oldest} (Docker 19.03, "
            "podman 3) or later is needed; update it"
        )
    with _lock:
        _answered.add(place)
    return _open(way, version)


def _open(way: dict[str, Any], version: str) -> Client:
    client = docker.DockerClient(version=version, timeout=_TIMEOUT_S, **way)
    if "tls" in way:
        # REQUESTS_CA_BUNDLE would take the place of the engine's own authority
        client.api.trust_env = False
    return client


def _way(settings: DockerSettings) -> dict[str, Any]:
    """Address and TLS: of the settings, DOCKER_HOST, the ``docker`` command's current context, or
    the usual socket.

    Raises:
        MachineError: there is no such context, or its certificates cannot be read.
    """
    named = settings.host or os.environ.get("DOCKER_HOST")
    context = os.environ.get("DOCKER_CONTEXT")
    try:
        if named:
            return dict(docker.utils.kwargs_from_env({**os.environ, "DOCKER_HOST": named}))
        found = dict(docker.context.ContextAPI.kwargs_from_context())
    except (docker.errors.DockerException, OSError, ValueError) as error:
        raise MachineError(
            f"the way to the container engine cannot be used: {error}; correct DOCKER_CERT_PATH or "
            "the current Docker context (`docker context ls`), or set DOCKER_HOST"
        ) from error
    if context not in (None, "", "default") and not found:
        raise MachineError(
            f"DOCKER_CONTEXT={context!r} does not exist; `docker context ls` shows those that do"
        )
    return {"base_url": _USUAL_HOST, **found}


def _reason(error: BaseException, place: str) -> tuple[str, str]:
    """What went wrong and what to do, by the first cause that says so."""
    causes = list(_causes(error))
    start = (
        "start it (`systemctl start docker`, or Docker Desktop), or name one in DOCKER_HOST or "
        "DockerSettings.host"
    )
    own = (
        'let this user speak to it (`sudo usermod -aG docker "$USER"`, then log in again), or set '
        "DOCKER_HOST to an engine of your own (`podman system service`)"
    )
    known: tuple[tuple[Any, str, str], ...] = (
        (FileNotFoundError, "the socket does not exist", start),
        (ConnectionRefusedError, "the connection is refused", start),
        (PermissionError, "permission denied", own),
        (
            socket.gaierror,
            "the name is unknown",
            "correct DOCKER_HOST or DockerSettings.host",
        ),
        (ssl.SSLError, "TLS failed: {}", "check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH"),
        (TimeoutError | requests.Timeout, f"no answer within {_TIMEOUT_S} s", start),
        (
            docker.errors.InvalidVersion,
            "it is too old: {}",
            "update it to Docker 19.03 or podman 3 or later",
        ),
    )
    for kind, why, remedy in known:
        if found := [cause for cause in causes if isinstance(cause, kind)]:
            return why.format(found[0]), remedy
    return str(causes[0]), f"see that it works (`docker -H {place} info`)"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it wraps, and what that wraps: requests and urllib3 hide the cause among the
    arguments.
    """
    pending = [error]
    seen = set[int]()
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = (*one.args, one.__cause__, one.__context__, getattr(one, "reason", None))
        pending += [cause for cause in inner if isinstance(cause, BaseException)]


@contextmanager
def asked(what: str) -> Iterator[None]:
    """Ask the engine for something: a failure is a SandboxError that says what was asked, and may
    be retried.

    Raises:
        SandboxError: the engine refused, or was gone.
    """
    try:
        yield
    except docker.errors.APIError as error:
        raise SandboxError(
            f"the container engine could not {what}: {error.explanation or error}"
        ) from error
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise SandboxError(f"the container engine could not {what}: {error}") from error


_OWNER = "agentrl.sandbox.owner_id"
_MACHINE = "agentrl.sandbox.machine"
ROOTS_FOLDER = "/sandbox"
_CAPABILITIES = (
    # Each sandbox has a uid of its own.
    "SETUID",
    "SETGID",
    # The supervisor ends slots of other uids.
    "KILL",
    # A slot's folder is its own.
    "CHOWN",
    # What a sandbox left is removed whatever its owner and modes.
    "DAC_OVERRIDE",
    "FOWNER",
)
_SPARE_PROCESSES = 64
# A share of the engine's memory: a container never has more.
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class ContainerSpec:
    """A container, but for what runs in it.

    Attributes:
        settings: engine, runtime, and the container's size.
        disk_bytes, max_files: size of the file system that each sandbox has.
        memory_bytes: what all runs that may execute at one time may use together.
        processes: what all sandboxes may have together; interpreters that rest keep their threads.
    """

    settings: DockerSettings
    disk_bytes: int
    max_files: int
    memory_bytes: int
    processes: int


def create(client: Client, spec: ContainerSpec, image_id: str, command: list[str]) -> str:
    """Create the container of a host, and answer with its id; nothing of it runs yet.

    It has no network, no mount of its host's, a read-only root, six capabilities, no new
    privileges, the engine's seccomp filter, bounded memory and processes, and for each sandbox a
    file system bounded in bytes and files. Its output is not kept, and it is removed when it ends.

    Args:
        client: the engine's.
        spec: of the container; its memory has room for all files as well.
        image_id, command: what runs.

    Raises:
        MachineError: the engine has no such runtime.
        SandboxError: the engine failed.
    """
    settings = spec.settings
    with asked("tell its memory"):
        ceiling = int(client.info()["MemTotal"] * _MEMORY_SHARE)
    sandboxes = settings.max_sandboxes * (SANDBOX_BYTES + spec.disk_bytes)
    memory = settings.memory_bytes or min(
        ceiling, HOST_BYTES + spec.memory_bytes + sandboxes
    )

    def attempt(*, count_files: bool) -> str:
        host_config = client.api.create_host_config(
            auto_remove=True,
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            cap_add=list(_CAPABILITIES),
            security_opt=["no-new-privileges"],
            ipc_mode="private",
            pids_limit=spec.processes + _SPARE_PROCESSES,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=None if settings.cpus is None else int(settings.cpus * 1e9),
            tmpfs=_file_systems(spec, count_files=count_files),
            log_config=docker.types.LogConfig(type="none"),
            runtime=settings.runtime,
        )
        config = client.api.create_container_config(
            image_id,
            None,
            entrypoint=command,
            user="0:0",
            working_dir="/",
            stdin_open=True,
            labels={_OWNER: str(Owner.current()), _MACHINE: socket.gethostname()},
            host_config=host_config,
        )
        config |= {
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
        }
        container = str(client.api.create_container_from_config(config)["Id"])
        if settings.runtime not in (
            None,
            client.api.inspect_container(container)["HostConfig"]["Runtime"],
        ):
            # Podman does not refuse the name, and takes another.
            remove(client, container)
            raise _no_runtime(settings.runtime, "it would take another")
        return container

    with asked("create a container"):
        try:
            return attempt(count_files=True)
        except docker.errors.APIError as error:
            if "nr_inodes" not in str(error.explanation):
                raise named_refusal(error, settings) from error
        try:
            # Podman bounds the bytes alone; the probe then says that `disk` is not guaranteed.
            return attempt(count_files=False)
        except docker.errors.APIError as error:
            raise named_refusal(error, settings) from error


def _file_systems(spec: ContainerSpec, *, count_files: bool) -> dict[str, str]:
    """The options of everything that can be written to, by where it is mounted."""

    def options(flags: str, size: int, files: int) -> str:
        return f"rw,nosuid,nodev,{flags},size={size}{f',nr_inodes={files}' if count_files else ''}"

    return {
        **dict.fromkeys(
            root_paths(spec.settings),
            options("exec,mode=0711", spec.disk_bytes, spec.max_files),
        ),
        "/tmp": options("noexec,mode=0711", 2**16, 16),
        "/run": options("noexec,mode=0700", 2**22, 16),
        # Nothing leads from one sandbox to another.
        "/dev/shm": options("noexec,mode=0700", 2**16, 16),
        "/dev/mqueue": options("noexec,mode=0700", 2**16, 16),
    }


def named_refusal(error: Any, settings: DockerSettings) -> MachineError | SandboxError:
    """The error for an engine that would not create or start a container."""
    said = str(error.explanation or error)
    if settings.runtime is not None and "runtime" in said:
        return _no_runtime(settings.runtime, said)
    return SandboxError(f"the container engine could not start a container: {said}")


def _no_runtime(name: str | None, why: str) -> MachineError:
    return MachineError(
        f"DockerSettings.runtime={name!r}: the engine has no such runtime ({why}); install it and "
        "name it in the engine's settings (daemon.json, containers.conf), or remove the setting"
    )


def root_paths(settings: DockerSettings) -> list[str]:
    """Where the file systems of the sandboxes are."""
    return [f"{ROOTS_FOLDER}/{index}" for index in range(settings.max_sandboxes)]


def remove(client: Client, container: str) -> None:
    """End and remove a container, unless it is gone already."""
    try:
        client.api.remove_container(container, force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        # With 409 its removal is under way.
        if error.status_code != 409:
            raise


def remove_orphaned_containers(settings: DockerSettings | None = None) -> list[str]:
    """Remove the containers that dead processes of this machine left; their ids and owners, for
    people.

    A container ends with its owner by itself; what is left are those that never started, and those
    of an engine that was down when their owner died. Another machine's are never touched, nor a
    living process's.

    Raises:
        MachineError: no engine answers.
        SandboxError: the engine failed.
    """
    client = connect(settings or DockerSettings())
    try:
        return remove_orphaned(client)
    finally:
        client.close()


def remove_orphaned(client: Client) -> list[str]:
    """:func:`remove_orphaned_containers` over a connection that exists."""
    removed = []
    with asked("list and remove containers"):
        here = {"label": f"{_MACHINE}={socket.gethostname()}"}
        found = client.api.containers(all=True, filters=here)
        named = ((one["Id"], one["Labels"].get(_OWNER, "")) for one in found)
        for container, owner in orphaned(named).items():
            remove(client, container)
            removed.append(f"container {container[:12]} of process {owner.pid}")
    return removed
