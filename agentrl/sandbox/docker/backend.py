"""Docker backend: builds sandboxes that are slots of a host in a container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.sandbox.forkserver.hosts import shared_server
from agentrl.sandbox.forkserver.server import HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox

from .containers import ContainerSpec
from .launcher import DockerLauncher
from .settings import DEFAULT_IMAGE, HOST_BYTES

if TYPE_CHECKING:
    from agentrl.sandbox.sandbox_spec import SandboxSpec

# of a sandbox beside what its code may have: the slot, and an interpreter that rests
_OWN_PROCESSES = 2


def docker(spec: SandboxSpec) -> ForkedSandbox:
    """A sandbox in the container that this process's sandboxes of such a spec share. Those of other
    images have their own, under one bound on runs at one time.

    What the image has installed can be imported; ``site_packages``, which is about this
    environment's packages, changes nothing.
    """
    settings = host_settings(spec)
    of_any_image = host_settings(spec.replace(image=None))
    return ForkedSandbox(
        lambda: shared_server(settings, of_any_image),
        spec.limits,
        persist=spec.persist,
        start_timeout_s=spec.start_timeout_s,
    )


def host_settings(spec: SandboxSpec) -> HostSettings:
    """What makes two sandboxes share one container.

    Raises:
        ConfigError: the container would be smaller than what one run may use.
    """
    room = spec.docker.memory_bytes
    if room is not None and room < HOST_BYTES + spec.limits.memory_bytes:
        raise ConfigError(
            f"DockerSettings.memory_bytes={room} is below the {HOST_BYTES} bytes of the host and "
            f"Limits.memory_bytes={spec.limits.memory_bytes} of one run together; raise it, or "
            "leave it out"
        )
    executing = HostSettings(confine=True, max_executing=spec.max_executing).permits
    container = ContainerSpec(
        spec.docker,
        disk_bytes=spec.limits.disk_bytes,
        max_files=spec.limits.max_files,
        memory_bytes=executing * spec.limits.memory_bytes,
        processes=spec.docker.max_sandboxes * (_OWN_PROCESSES + spec.limits.processes),
    )
    return HostSettings(
        confine=True,
        preload=spec.preload_modules,
        max_executing=spec.max_executing,
        recycle_after=spec.recycle_after,
        launcher=DockerLauncher(container, spec.image or DEFAULT_IMAGE),
    )
