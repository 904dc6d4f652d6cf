"""Backend table: how each backend is built, and how its guarantees are measured.

A backend's specification is an opaque value here, which its factory understands.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agentrl.errors import AgentRLError, ConfigError
from agentrl.types.user_code.load import load_function

from .guarantees import BackendReport
from .interface import Sandbox
from .probe import measure


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table.

    Attributes:
        factory: ``module:function`` of a ``BackendFactory``, imported when it is needed.
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

logger = logging.getLogger(__name__)

_reports: dict[Hashable, BackendReport] = {}
# Guards _reports, and lets one thread at a time probe: a second caller waits for the report.
_lock = threading.Lock()


def factory_of(name: str) -> Callable[[Any], Sandbox]:
    """The function that builds sandboxes of this backend.

    Raises:
        ConfigError: a user's backend cannot be imported, or is no function.
    """
    reference = BACKENDS[name].factory if name in BACKENDS else name
    return load_function(reference, None, _broken, "(SandboxSpec)")


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"SandboxSpec.backend{rule}", fields=["SandboxSpec.backend"])


def report_on(backend: str, spec: Hashable, *, proxied: bool) -> BackendReport:
    """What ``backend`` guarantees here, found out by running code; remembered unless it failed.

    Args:
        backend: its name.
        spec: what its factory is given; equal ones share a report.
        proxied: whether the code may reach some hosts.

    Raises:
        ConfigError: a setting is to blame, not the machine.
    """
    with _lock:
        report = _reports.get(spec)
        if report is None:
            report = _try(backend, spec, proxied=proxied)
            # else a later call may succeed: the machine may be busy
            if report.problem is None:
                logger.info(
                    "sandbox %s", report, extra={"event": "sandbox_probed", "backend": backend}
                )
                _reports[spec] = report
        return report


def _try(backend: str, spec: Hashable, *, proxied: bool) -> BackendReport:
    row = BACKENDS.get(backend)
    if row is not None and not row.isolates:
        return BackendReport(backend, notes="limits only")

    async def attempt() -> BackendReport:
        async with factory_of(backend)(spec) as sandbox:
            guarantees = await measure(sandbox, proxied=proxied)
            return BackendReport(backend, guarantees, notes=sandbox.notes)

    try:
        # the caller's thread may run an event loop already
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, attempt()).result()
    except ConfigError:
        raise
    except AgentRLError as error:
        return BackendReport(backend, problem=str(error))
