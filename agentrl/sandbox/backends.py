"""The table of backends: how each is built, what it costs, and how its guarantees are measured."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import load_object

from .guarantees import BackendReport
from .interface import Sandbox
from .limits import Limits
from .probe import measure

if TYPE_CHECKING:
    from .sandbox_spec import SandboxSpec

BackendFactory = Callable[["SandboxSpec"], Sandbox]
"""What a backend is: a function that makes a sandbox of a spec without blocking for long.

It raises MachineError where this machine cannot serve it and ConfigError where a setting is to blame;
what it guarantees is found out by running code in it, never asked.
"""


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table.

    Attributes:
        factory: ``module:function`` of a :data:`BackendFactory`, imported when it is needed.
        isolates: whether it is tried at all; one that does not is never taken by ``auto``.
        images: whether it runs in images (``SandboxSpec.image``).
        network: whether it can let code reach chosen hosts, and no others (``NetworkSpec.allow``).
    """

    factory: str
    isolates: bool = True
    images: bool = False
    network: bool = False


# cheapest execution first: where two hold the same guarantees, ``auto`` takes the first
BACKENDS = MappingProxyType(
    {
        "landlock": Backend("agentrl.sandbox.forkserver.local:landlock"),
        "bubblewrap": Backend("agentrl.sandbox.forkserver.bubblewrap:bubblewrap", network=True),
        "docker": Backend("agentrl.sandbox.docker.backend:docker", images=True),
        "unsafe": Backend("agentrl.sandbox.forkserver.local:unsafe", isolates=False),
    }
)

_PROBE_START_S = 60.0

_log = logging.getLogger(__name__)
_reports: dict[SandboxSpec, BackendReport] = {}
_lock = threading.Lock()


def is_named(name: str) -> bool:
    """Whether ``SandboxSpec.backend`` may say so: a row of the table, or ``module:function`` of one's own."""
    return name in BACKENDS or ":" in name


def factory_of(name: str) -> BackendFactory:
    """The function that builds sandboxes of this backend.

    Raises:
        ConfigError: a backend of one's own that cannot be imported, or is no function.
    """
    factory = load_object(BACKENDS[name].factory if name in BACKENDS else name)
    if not callable(factory):
        raise ConfigError(
            f"SandboxSpec.backend={name!r} must name a function (SandboxSpec) -> Sandbox, got {factory!r}"
        )
    return factory  # type: ignore[no-any-return]


def probed(spec: SandboxSpec) -> SandboxSpec:
    """The spec as it is probed: without what has no part in the guarantees; a container's size is part of them."""
    row = BACKENDS.get(spec.backend)
    return spec.replace(
        limits=spec.limits if row is not None and row.images else Limits(),
        require=None,
        persist="files",
        start_timeout_s=_PROBE_START_S,
        max_running=None,
        max_starting=None,
        max_lifetime_s=None,
    )


def report_on(spec: SandboxSpec) -> BackendReport:
    """What the backend that ``spec`` names guarantees here, found out by running code; remembered where it works.

    Raises:
        ConfigError: a setting is to blame, not the machine.
    """
    key = probed(spec)
    with _lock:
        report = _reports.get(key)
        if report is None:
            report = _try(key)
            if (
                report.problem is None
            ):  # a machine that was only busy may do better at the next call
                _log.info("sandbox %s", report)
                _reports[key] = report
        return report


def _try(spec: SandboxSpec) -> BackendReport:
    row = BACKENDS.get(spec.backend)
    if row is not None and not row.isolates:
        return BackendReport(spec.backend, notes="limits only")

    async def attempt() -> BackendReport:
        async with factory_of(spec.backend)(spec) as sandbox:
            guarantees = await measure(sandbox, proxied=bool(spec.network.allow))
            return BackendReport(spec.backend, guarantees, notes=sandbox.notes)

    try:
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may run an event loop already
            return pool.submit(asyncio.run, attempt()).result()
    except ConfigError:
        raise
    except AgentRLError as error:
        return BackendReport(spec.backend, problem=str(error))
