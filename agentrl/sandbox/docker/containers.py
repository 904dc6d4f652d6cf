"""Containers: create the hardened container of a host, and remove those of dead owners."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import docker

from agentrl.errors import MachineError, SandboxError
from agentrl.sandbox.owner_id import Owner, orphaned

from .engine import Client, asked, connect
from .settings import HOST_BYTES, SANDBOX_BYTES, DockerSettings

_OWNER = "agentrl.sandbox.owner_id"
_MACHINE = "agentrl.sandbox.machine"
ROOTS_FOLDER = "/sandbox"
_CAPABILITIES = (
    "SETUID",  # a uid for each sandbox
    "SETGID",
    "KILL",  # the supervisor ends slots of other uids
    "CHOWN",  # a slot's folder is its own
    "DAC_OVERRIDE",  # what a sandbox left is removed whatever its owner and modes
    "FOWNER",
)
_SPARE_PROCESSES = 64
_MEMORY_SHARE = 0.8  # of the engine's


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
    memory = settings.memory_bytes or min(ceiling, HOST_BYTES + spec.memory_bytes + sandboxes)

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
            remove(client, container)  # podman does not refuse it, and takes another
            raise _no_runtime(settings.runtime, "it would take another")
        return container

    with asked("create a container"):
        try:
            return attempt(count_files=True)
        except docker.errors.APIError as error:
            if "nr_inodes" not in str(error.explanation):
                raise named_refusal(error, settings) from error
        try:  # podman bounds the bytes alone; the probe then says that `disk` is not guaranteed
            return attempt(count_files=False)
        except docker.errors.APIError as error:
            raise named_refusal(error, settings) from error


def _file_systems(spec: ContainerSpec, *, count_files: bool) -> dict[str, str]:
    """The options of everything that can be written to, by where it is mounted."""

    def options(flags: str, size: int, files: int) -> str:
        return f"rw,nosuid,nodev,{flags},size={size}{f',nr_inodes={files}' if count_files else ''}"

    return {
        **dict.fromkeys(
            root_paths(spec.settings), options("exec,mode=0711", spec.disk_bytes, spec.max_files)
        ),
        "/tmp": options("noexec,mode=0711", 2**16, 16),
        "/run": options("noexec,mode=0700", 2**22, 16),
        "/dev/shm": options("noexec,mode=0700", 2**16, 16),  # no way from one sandbox to another
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
        if error.status_code != 409:  # its removal is under way
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
