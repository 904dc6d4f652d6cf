"""Local backends: ``landlock``, and ``unsafe`` without any confinement."""

from __future__ import annotations

import sys
import sysconfig
from typing import TYPE_CHECKING

from agentrl.errors import MachineError

from .hosts import shared_server
from .launcher import Launcher, LocalLauncher
from .server import HostSettings
from .slot_sandbox import ForkedSandbox

if TYPE_CHECKING:
    from agentrl.sandbox.sandbox_spec import SandboxSpec


def landlock(spec: SandboxSpec) -> ForkedSandbox:
    """Landlock, seccomp and rlimits around the warm interpreter.

    Raises:
        MachineError: not on Linux.
    """
    if sys.platform != "linux":
        raise MachineError(f"it needs Linux, this is {sys.platform}")
    return forked(spec, confine=True)


def unsafe(spec: SandboxSpec) -> ForkedSandbox:
    """The same host with nothing but limits."""
    return forked(spec, confine=False)


def forked(spec: SandboxSpec, *, confine: bool, launcher: Launcher | None = None) -> ForkedSandbox:
    """A sandbox in the host that this process's sandboxes of such a spec share.

    Args:
        spec: what the host and the sandbox are told.
        confine: whether each run enters Landlock and seccomp.
        launcher: where the host runs; None beside this process.
    """
    settings = HostSettings(
        confine=confine,
        preload=spec.preload_modules,
        folders=module_folders(spec),
        max_executing=spec.max_executing,
        launcher=launcher or LocalLauncher(),
        recycle_after=spec.recycle_after,
        network=spec.network.allow,
    )
    return ForkedSandbox(
        lambda: shared_server(settings),
        spec.limits,
        persist=spec.persist,
        start_timeout_s=spec.start_timeout_s,
    )


def module_folders(spec: SandboxSpec) -> tuple[str, ...]:
    """Folders of modules beyond the standard library that the code may read and import."""
    names = ("purelib", "platlib") if spec.site_packages else ()
    return tuple(dict.fromkeys(map(sysconfig.get_path, names)))
