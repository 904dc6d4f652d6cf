"""Which sandbox a run uses: named in the configuration, probed on the machine, built where it is hosted."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import sysconfig
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from agentrl.errors import AgentRLError, ConfigError, MachineError

from .forked import ForkedSandbox
from .forkserver import HostSettings, shared_server
from .guarantees import GUARANTEES, BackendReport, parse_require
from .interface import Sandbox
from .limits import Limits
from .probe import measure

BACKENDS = ("landlock", "unsafe")
_AUTO_ORDER = ("landlock",)  # strongest first; unsafe is never taken without being named
_MENDS = (
    'run agentrl in a Linux container (docker run -it -v "$PWD":/w -w /w python:3.11 bash), '
    "or set sandbox.backend=unsafe if the code is as harmless as the code example's arithmetic"
)

_log = logging.getLogger(__name__)
_reports: dict[tuple[str, HostSettings], BackendReport] = {}
_reports_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A picklable description of a sandbox; whoever hosts it calls :meth:`build`.

    Attributes:
        backend: ``auto`` takes the strongest that works here; ``landlock``; or ``unsafe``, which gives
            no isolation and is only used where it is named.
        require: the level (``none``, ``isolated``, ``full``) or guarantees below which nothing is run.
            None asks for ``isolated``, and for nothing where ``unsafe`` is named.
        limits: for every run that brings none of its own.
        preload_modules: imported once in the warm interpreter, so that runs find them loaded.
        site_packages: let the code read and import this environment's installed packages.
        max_executing: runs at one time in a process, over all sandboxes of its specs that differ in ``limits`` and
            ``require`` alone; the others wait in order, and no deadline counts their wait. None gives two to each
            core that the process may use.

    Raises:
        ConfigError: an unknown backend or guarantee, ``max_executing`` below 1, or ``unsafe`` together with a
            requirement.
    """

    backend: str = "auto"
    require: str | tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    preload_modules: tuple[str, ...] = ()
    site_packages: bool = False
    max_executing: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("auto", *BACKENDS):
            raise ConfigError(
                f"sandbox.backend={self.backend!r} does not exist; use one of {', '.join(('auto', *BACKENDS))}"
            )
        if self.max_executing is not None and not _is_count(self.max_executing):
            raise ConfigError(
                f"sandbox.max_executing must be a whole number of at least 1, got {self.max_executing!r}; raise it, or "
                "leave it out to have two to each core"
            )
        if self.required and self.backend == "unsafe":
            raise ConfigError(
                f"sandbox.require={self.require!r} contradicts sandbox.backend='unsafe', which guarantees nothing; "
                "remove one of the two"
            )

    @property
    def required(self) -> frozenset[str]:
        """The guarantees below which nothing is run."""
        if self.require is None:
            return parse_require("none" if self.backend == "unsafe" else "isolated")
        return parse_require(self.require)

    def check(self) -> BackendReport:
        """Probe by really running something; what the chosen backend guarantees here.

        Blocks for a fraction of a second on the first call in a process; later calls remember.

        Raises:
            MachineError: no backend gives what is required; one line with what to do.
            ConfigError: a module of ``preload_modules`` cannot be imported.
        """
        names = _AUTO_ORDER if self.backend == "auto" else (self.backend,)
        reports = [_report(name, self._settings(name)) for name in names]
        for report in reports:
            if report.problem is None and self.required <= report.held:
                if report.backend == "unsafe":
                    _warn_of_unsafe()
                return report
        found = "; ".join(_shortfall(report, self.required) for report in reports)
        raise MachineError(f"sandbox.backend={self.backend!r}: {found}; {_MENDS}")

    def build(self) -> Sandbox:
        """A fresh sandbox of the backend that :meth:`check` chose; raises what it raises."""
        settings = self._settings(self.check().backend)
        return ForkedSandbox(lambda: shared_server(settings), self.limits)

    def describe(self) -> Mapping[str, bool]:
        """Each guarantee, and whether it holds on this machine; raises what :meth:`check` raises."""
        return self.check().guarantees

    def _settings(self, name: str) -> HostSettings:
        paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if self.site_packages else ()
        folders = tuple(dict.fromkeys(paths))
        return HostSettings(
            confine=name != "unsafe",
            preload=self.preload_modules,
            folders=folders,
            max_executing=self.max_executing,
        )


def probe_backends() -> list[BackendReport]:
    """What every backend guarantees on this machine, strongest first; for ``agentrl doctor``."""
    return [_report(name, HostSettings(confine=name != "unsafe")) for name in BACKENDS]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _shortfall(report: BackendReport, required: frozenset[str]) -> str:
    if report.problem is not None:
        return f"{report.backend} cannot be used: {report.problem}"
    missing = ", ".join(name for name in GUARANTEES if name in required - report.held)
    return f"{report.backend} does not give {missing} here"


@functools.cache
def _warn_of_unsafe() -> None:
    _log.warning(
        "sandbox.backend='unsafe': the code runs with all rights of this user, files and network included; "
        "only limits on time, memory and output hold"
    )


def _report(name: str, settings: HostSettings) -> BackendReport:
    with _reports_lock:
        report = _reports.get((name, settings))
        if report is None:
            report = _probe_landlock(settings) if name == "landlock" else BackendReport("unsafe", notes="limits only")
            if report.problem is None:  # a machine that was only busy may do better at the next call
                _log.info("sandbox %s", report)
                _reports[name, settings] = report
        return report


def _probe_landlock(settings: HostSettings) -> BackendReport:
    if sys.platform != "linux":
        return BackendReport("landlock", problem=f"it needs Linux, this is {sys.platform}")
    try:
        facts = shared_server(settings).facts
        sandbox = ForkedSandbox(lambda: shared_server(settings), Limits())

        async def run() -> Mapping[str, bool]:
            async with sandbox:
                return await measure(sandbox)

        with ThreadPoolExecutor(1) as pool:  # the caller's thread may run an event loop already
            guarantees = pool.submit(asyncio.run, run()).result()
    except ConfigError:
        raise
    except AgentRLError as error:
        return BackendReport("landlock", problem=str(error))
    user = "its own uid" if facts["own_uid"] else "the owner's uid"
    return BackendReport("landlock", guarantees, notes=f"Landlock ABI {facts['abi']}, {user}")
