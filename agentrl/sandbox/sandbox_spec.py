"""Which sandbox a run uses: named in the configuration, probed on the machine, built where it is hosted."""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agentrl.errors import ConfigError, MachineError

from . import backends
from .backends import BACKENDS, factory_of, is_named
from .docker import DockerSettings
from .guarantees import GUARANTEES, BackendReport, parse_require
from .host.confine.uids import SLOTS
from .interface import Persist, Sandbox
from .limits import Limits
from .proxy import AllowList

_OFF_LINUX = (
    "start a container engine and make its image ready (agentrl doctor --prepare), run agentrl in a Linux container "
    '(docker run -it -v "$PWD":/w -w /w python:3.11 bash), or set sandbox.backend=unsafe if the code is as harmless as '
    "the code example's arithmetic"
)

_PROBE_START_S = 60.0

_log = logging.getLogger(__name__)
_chosen: dict[SandboxSpec, BackendReport] = {}


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A picklable description of a sandbox; whoever hosts it calls :meth:`build`.

    Attributes:
        backend: ``auto`` takes the one that guarantees most here; a name of ``BACKENDS``; or ``module:function``
            of a function ``(SandboxSpec) -> Sandbox`` of one's own. ``unsafe`` is only used where it is named.
        require: the level (``none``, ``isolated``, ``full``) or guarantees below which nothing is run.
            None asks for ``isolated``, and for nothing where ``unsafe`` is named.
        limits: for every run that brings none of its own.
        persist: what lasts over the runs of one sandbox: ``files``, or also an ``interpreter``'s variables.
        preload_modules: imported once in the warm interpreter, so that runs find them loaded.
        site_packages: let the code read and import this environment's installed packages.
        max_executing: runs at one time in a process, over all sandboxes of its specs that differ in ``limits`` and
            ``require`` alone; the others wait in order, and no deadline counts their wait. None gives two to each
            core that the process may use.
        start_timeout_s: seconds in which a sandbox must be ready; no run's deadline counts them.
        max_starting: sandboxes of a pool that start at one time; None lets all that the pool lends start at once.
        max_lifetime_s: seconds after which a pool ends a sandbox that was not given back; None waits for ever.
        recycle_after: runs after which a fresh host takes the place of a worn one; None keeps it.
        network: hosts that the code may reach through a proxy (``host``, ``host:port``, ``*.domain``; see
            ``agentrl.sandbox.proxy.AllowList``), for backends that can; none by default.
        image: the image that the code runs in, or a folder with a Dockerfile (``./``, ``../`` or ``/`` first), for
            backends that have images; None takes Python's own (``python:3.12-slim`` for Python 3.12). Never pulled or
            built in a run: ``agentrl doctor --prepare`` does it ahead.
        docker: which engine and runtime, and how large its containers are.

    Raises:
        ConfigError: an unknown backend or guarantee, a number out of its range, or ``unsafe`` together with a
            requirement.
    """

    backend: str = "auto"
    require: str | tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    persist: Persist = "files"
    preload_modules: tuple[str, ...] = ()
    site_packages: bool = False
    max_executing: int | None = None
    start_timeout_s: float = 60.0
    max_starting: int | None = None
    max_lifetime_s: float | None = None
    recycle_after: int | None = None
    network: tuple[str, ...] = ()
    image: str | None = None
    docker: DockerSettings = field(default_factory=DockerSettings)

    def __post_init__(self) -> None:
        if self.backend != "auto" and not is_named(self.backend):
            raise ConfigError(
                f"sandbox.backend={self.backend!r} does not exist; use one of {', '.join(('auto', *BACKENDS))}, "
                "or module:function of your own"
            )
        if self.persist not in ("files", "interpreter"):
            raise ConfigError(
                f"sandbox.persist must be 'files' or 'interpreter', got {self.persist!r}; correct it"
            )
        _check_count("max_executing", self.max_executing, "leave it out to have two to each core")
        _check_count("recycle_after", self.recycle_after, "leave it out to keep the host")
        _check_count("max_starting", self.max_starting, "leave it out to let all start at once")
        AllowList(self.network)
        row = BACKENDS.get(self.backend)
        if self.network and row is not None and not row.network:
            raise ConfigError(
                f"sandbox.network.allow needs a backend that can keep code to a list of hosts, "
                f"sandbox.backend={self.backend!r} cannot; use one of "
                f"{', '.join(name for name, row in BACKENDS.items() if row.network)}, or remove the hosts"
            )
        if self.image is not None and row is not None and not row.images:
            raise ConfigError(
                f"sandbox.image={self.image!r} needs a backend with images, sandbox.backend={self.backend!r} has none; "
                f"use one of {', '.join(name for name, row in BACKENDS.items() if row.images)}, or remove the image"
            )
        if self.image is not None and not self.image.strip():
            raise ConfigError(
                "sandbox.image must name an image or a folder with a Dockerfile, got ''; or leave it out"
            )
        for name in ("start_timeout_s", "max_lifetime_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise ConfigError(
                    f"sandbox.{name} must be a number of seconds above 0, got {seconds!r}"
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

        ``auto`` takes the backend that was seen to guarantee most, and of equals the one whose executions cost
        least. Blocks for a fraction of a second on the first call in a process, longer where a container must be
        started; later calls remember.

        Raises:
            MachineError: no backend gives what is required; one line with what to do.
            ConfigError: a module of ``preload_modules`` cannot be imported, or another setting is to blame.
        """
        key = replace(probed(self), require=self.require)
        report = _chosen.get(key)
        if report is None:
            report = _chosen[key] = self._choose()
        if report.backend == "unsafe":
            _warn_of_unsafe()
        return report

    def settled(self) -> SandboxSpec:
        """The same with the backend that :meth:`check` chose, so that another host of it takes no other in silence."""
        return replace(self, backend=self.check().backend)

    def build(self) -> Sandbox:
        """A fresh sandbox of the backend that :meth:`check` chose; raises what it raises."""
        settled = self.settled()
        return factory_of(settled.backend)(settled)

    def check_room(self, max_running: int) -> None:
        """Whether ``max_running`` sandboxes fit into this process; ``auto``, and a backend of one's own, tell nothing.

        Raises:
            ConfigError: the backend's host holds fewer.
        """
        row = BACKENDS.get(self.backend)
        if row is None:
            return
        most = self.docker.max_sandboxes if row.images else SLOTS
        if max_running > most:
            bound = (
                f"sandbox.docker.max_sandboxes={most}"
                if row.images
                else f"the {most} that one process can hold"
            )
            raise ConfigError(
                f"sandbox.max_running={max_running} (by default rollout.max_running) in one process is more than "
                f"{bound}; lower it{f', or raise the other up to {SLOTS}' if most < SLOTS else ''}"
            )

    def describe(self) -> Mapping[str, bool]:
        """Each guarantee, and whether it holds on this machine; raises what :meth:`check` raises."""
        return self.check().guarantees

    def candidates(self) -> tuple[str, ...]:
        """The backends that may serve this spec, cheapest executions first."""
        if self.backend != "auto":
            return (self.backend,)
        return tuple(
            name
            for name, row in BACKENDS.items()
            if row.isolates
            and (row.images or self.image is None)
            and (row.network or not self.network)
        )

    def _choose(self) -> BackendReport:
        reports: list[BackendReport] = []
        for name in self.candidates():
            reports.append(report_on(replace(self, backend=name)))
            if len(reports[-1].held) == len(GUARANTEES):
                break  # nothing can hold more, and whatever follows costs more
        usable = [
            report for report in reports if report.problem is None and self.required <= report.held
        ]
        if not usable:
            found = "; ".join(_shortfall(report, self.required) for report in reports)
            raise MachineError(
                f"sandbox.backend={self.backend!r}: {found}; {self._advice(reports)}"
            )
        best = max(usable, key=lambda report: len(report.held))  # the first of equals
        if self.backend == "auto":
            passed_over = [f"; {report}" for report in reports if report is not best]
            _log.info("sandbox.backend='auto' takes %s%s", best, "".join(passed_over))
        return best

    def _advice(self, reports: list[BackendReport]) -> str:
        """What to do where none will do, beside what each problem says by itself."""
        if sys.platform != "linux":
            return _OFF_LINUX
        broken = all(report.problem is not None for report in reports)
        if self.backend == "auto":
            return (
                "one of them is enough"
                if broken
                else "mend one of them, or require less by sandbox.require"
            )
        others = "set sandbox.backend=auto, which tries all others"
        return f"or {others}" if broken else f"{others}, or require less by sandbox.require"


def probe_backends(spec: SandboxSpec | None = None) -> list[BackendReport]:
    """What every backend of the table guarantees on this machine, cheapest first; for ``agentrl doctor``.

    Args:
        spec: with these settings; by default the defaults.
    """
    spec = replace(spec or SandboxSpec(), require="none")
    return [report_on(replace(spec, backend=name)) for name in BACKENDS]


BackendFactory = Callable[[SandboxSpec], Sandbox]
"""What a backend is: a function that makes a sandbox of a spec without blocking for long.

It raises MachineError where this machine cannot serve it and ConfigError where a setting is to blame;
what it guarantees is found out by running code in it, never asked.
"""


def report_on(spec: SandboxSpec) -> BackendReport:
    """What the backend that ``spec`` names guarantees here, found out by running code.

    Raises:
        ConfigError: a setting is to blame, not the machine.
    """
    return backends.report_on(spec.backend, probed(spec), proxied=bool(spec.network))


def probed(spec: SandboxSpec) -> SandboxSpec:
    """The spec as it is probed, without what has no part in the guarantees; a container's size has."""
    row = BACKENDS.get(spec.backend)
    return replace(
        spec,
        limits=spec.limits if row is not None and row.images else Limits(),
        require=None,
        persist="files",
        start_timeout_s=_PROBE_START_S,
        max_starting=None,
        max_lifetime_s=None,
    )


def _check_count(name: str, value: object, mend: str) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(
            f"sandbox.{name} must be a whole number of at least 1, got {value!r}; raise it, or {mend}"
        )


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
