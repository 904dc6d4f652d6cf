"""Sandbox specification: which sandbox a run uses, probed on the machine and built where it is
hosted.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from agentrl.errors import ConfigError, MachineError
from agentrl.types.section import ActsWith, Count, Listed, Seconds, Section, Words

from . import backends
from .backends import BACKENDS, factory_of
from .docker import DockerSettings
from .guarantees import GUARANTEES, BackendReport, parse_require
from .host.confine.uids import SLOTS
from .interface import Limits, Persist, Sandbox
from .proxy import AllowList

_OFF_LINUX = (
    "start a container engine and make its image ready (`agentrl doctor --prepare`), run agentrl "
    'in a Linux container (`docker run -it -v "$PWD":/w -w /w python:3.11 bash`), or set '
    "SandboxSpec.backend=unsafe if the code is as harmless as the code example's arithmetic"
)

_PROBE_START_S = 60.0
_OF_CONTAINERS = ActsWith(
    "backend", but=tuple(name for name, row in BACKENDS.items() if not row.images)
)

_log = logging.getLogger(__name__)
_chosen: dict[SandboxSpec, BackendReport] = {}


def _network(value: Any) -> Any:
    """``none``, or the hosts alone, as a mapping."""
    if value == "none":
        return {}
    return {"allow": value} if isinstance(value, tuple | list) else value


class NetworkSpec(Section):
    """What of the network the model's code may reach: nothing, or chosen hosts through a proxy that
    counts and logs.
    """

    allow: Listed[str] = ()
    """Hosts: ``host`` (ports 80 and 443), ``host:port``, ``*.domain``, or an address with its port.
    Names that lead to private or metadata addresses are refused. Needs ``backend: bubblewrap`` (or
    ``auto`` that finds it).
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        AllowList(self.allow)
        return self


class SandboxSpec(Section):
    """Where the model's code runs, and within which limits."""

    backend: str = "auto"
    """``auto`` takes the one that guarantees most on this machine (``agentrl doctor`` shows which);
    ``unsafe`` isolates nothing; ``module:function`` names one of your own.
    """
    require: Words | None = None
    """Level (``none``, ``isolated``, ``full``) or guarantees below which nothing runs; by default
    ``isolated``, and ``none`` where ``unsafe`` is named.
    """
    limits: Limits = Field(default_factory=Limits)
    """Of one execution that brings none of its own."""
    network: Annotated[NetworkSpec, BeforeValidator(_network)] = Field(
        default_factory=NetworkSpec
    )
    """``none``, or hosts that the code may reach through the variables ``HTTP_PROXY`` and
    ``HTTPS_PROXY``.
    """
    image: str | None = None
    """Image that the code runs in, or a folder with a Dockerfile (``./``, ``../`` or ``/`` first),
    for backends that have images. Never pulled in a run: ``agentrl doctor --prepare`` does it
    ahead. By default Python's own.
    """
    docker: Annotated[DockerSettings, _OF_CONTAINERS] = Field(
        default_factory=DockerSettings
    )
    """Of the ``docker`` backend."""
    persist: Persist = "files"
    """What lasts over the calls of one episode: ``files``, or also the ``interpreter``'s variables.
    """
    preload_modules: Listed[str] = ()
    """Python modules imported once, so that executions find them loaded."""
    site_packages: bool = False
    """Let the code import the packages installed beside agentrl."""
    max_running: Count | None = None
    """Sandboxes at one time over all processes of the run, each held by its episode from the first
    call that needs it to the end; by default ``rollout.max_running`` in each process.
    """
    max_executing: Count | None = None
    """Executions at one time in each process that hosts episodes; the others wait in order, which
    no deadline of theirs counts. By default two to each core that the process may use.
    """
    max_starting: Count | None = None
    """Sandboxes that start at one time; by default as many as may run."""
    start_timeout_s: Seconds = 60.0
    """Seconds in which a sandbox must be ready; one that is not is tried again like any failure of
    infrastructure.
    """
    max_lifetime_s: Seconds | None = None
    """Seconds after which a sandbox that its episode has not given back is ended; must exceed
    ``rollout.episode_timeout_s``."""
    recycle_after: Count | None = None
    """Executions after which a fresh warm host takes the place of a worn one; by default it stays.
    """

    def __init__(self, backend: str = "auto", **settings: Any) -> None:
        super().__init__(backend=backend, **settings)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined] # see Section

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.backend not in ("auto", *BACKENDS) and ":" not in self.backend:
            raise self.broken(
                "backend",
                f"={self.backend!r} does not exist; use one of {', '.join(('auto', *BACKENDS))}, "
                "or module:function of your own",
            )
        row = BACKENDS.get(self.backend)
        if self.network.allow and row is not None and not row.network:
            able = ", ".join(name for name, row in BACKENDS.items() if row.network)
            raise self.broken(
                "network",
                ".allow needs a backend that can keep code to a list of hosts, "
                f"SandboxSpec.backend={self.backend!r} "
                f"cannot; use one of {able}, or remove the hosts",
            )
        if self.image is not None and row is not None and not row.images:
            able = ", ".join(name for name, row in BACKENDS.items() if row.images)
            raise self.broken(
                "image",
                f"={self.image!r} needs a backend with images, "
                f"SandboxSpec.backend={self.backend!r} has none; use one "
                f"of {able}, or remove the image",
            )
        if self.image is not None and not self.image.strip():
            raise self.broken(
                "image",
                " must name an image or a folder with a Dockerfile, got ''; or leave it out",
            )
        if self.required and self.backend == "unsafe":
            raise self.broken(
                "require",
                f"={', '.join(self.require or ())!r} contradicts SandboxSpec.backend='unsafe', "
                "which guarantees nothing; remove one of the two",
            )
        return self

    @property
    def required(self) -> frozenset[str]:
        """The guarantees below which nothing is run."""
        if self.require is None:
            return parse_require("none" if self.backend == "unsafe" else "isolated")
        return parse_require(self.require)

    def check(self) -> BackendReport:
        """Probe by really running something; what the chosen backend guarantees here.

        ``auto`` takes the backend that was seen to guarantee most, and of equals the one whose
        executions cost least. Blocks for a fraction of a second on the first call in a process,
        longer where a container must be started; later calls remember.

        Raises:
            MachineError: no backend gives what is required; one line with what to do.
            ConfigError: a module of ``preload_modules`` cannot be imported, or another setting is
                to blame.
        """
        key = probed(self).replace(require=self.require)
        report = _chosen.get(key)
        if report is None:
            report = _chosen[key] = self._choose()
        if report.backend == "unsafe":
            _warn_of_unsafe()
        return report

    def resolved(self) -> SandboxSpec:
        """The same with the backend that :meth:`check` chose, so that another host of it takes no
        other in silence.
        """
        return self.replace(backend=self.check().backend)

    def of_image(self, image: str | None) -> SandboxSpec:
        """The same in another image; None is its own.

        Raises:
            ConfigError: the backend has no images.
        """
        return self if image is None else self.replace(image=image)

    def build(self) -> Sandbox:
        """A fresh sandbox of the backend that :meth:`check` chose; raises what it raises."""
        resolved = self.resolved()
        return factory_of(resolved.backend)(resolved)

    def check_room(self, max_running: int) -> None:
        """Whether ``max_running`` sandboxes fit into this process; ``auto``, and a backend of one's
        own, tell nothing.

        Raises:
            ConfigError: the backend's host holds fewer.
        """
        row = BACKENDS.get(self.backend)
        if row is None:
            return
        most = self.docker.max_sandboxes if row.images else SLOTS
        if max_running > most:
            bound = (
                f"DockerSettings.max_sandboxes={most}"
                if row.images
                else f"the {most} that one process can hold"
            )
            raise ConfigError(
                f"SandboxSpec.max_running={max_running} (by default RolloutConfig.max_running) "
                "in one process is more than "
                f"{bound}; lower it{f', or raise the other up to {SLOTS}' if most < SLOTS else ''}",
                fields=["SandboxSpec.max_running", "DockerSettings.max_sandboxes"],
            )

    def candidates(self) -> tuple[str, ...]:
        """The backends that may serve this spec, cheapest executions first."""
        if self.backend != "auto":
            return (self.backend,)
        return tuple(
            name
            for name, row in BACKENDS.items()
            if row.isolates
            and (row.images or self.image is None)
            and (row.network or not self.network.allow)
        )

    def _choose(self) -> BackendReport:
        reports: list[BackendReport] = []
        for name in self.candidates():
            reports.append(report_on(self.replace(backend=name)))
            if len(reports[-1].held) == len(GUARANTEES):
                # nothing can hold more, and whatever follows costs more
                break
        usable = [
            report
            for report in reports
            if report.problem is None and self.required <= report.held
        ]
        if not usable:
            found = "; ".join(_shortfall(report, self.required) for report in reports)
            raise MachineError(
                f"SandboxSpec.backend={self.backend!r}: {found}; {self._advice(reports)}"
            )
        # the first of equals
        best = max(usable, key=lambda report: len(report.held))
        if self.backend == "auto":
            passed_over = [f"; {report}" for report in reports if report is not best]
            _log.info("sandbox backend 'auto' takes %s%s", best, "".join(passed_over))
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
                else "fix one of them, or require less by SandboxSpec.require"
            )
        others = "set SandboxSpec.backend=auto, which tries all others"
        return (
            f"or {others}"
            if broken
            else f"{others}, or require less by SandboxSpec.require"
        )


def probe_backends() -> list[BackendReport]:
    """What every backend of the table guarantees on this machine, cheapest first; for ``agentrl
    doctor``.
    """
    return [report_on(SandboxSpec(name, require="none")) for name in BACKENDS]


BackendFactory = Callable[[SandboxSpec], Sandbox]
"""What a backend is: a function that makes a sandbox of a spec without blocking for long.

It raises MachineError where this machine cannot serve it and ConfigError where a setting is to
blame; what it guarantees is found out by running code in it, never asked.
"""


def report_on(spec: SandboxSpec) -> BackendReport:
    """What the backend that ``spec`` names guarantees here, found out by running code.

    Raises:
        ConfigError: a setting is to blame, not the machine.
    """
    return backends.report_on(spec.backend, probed(spec), proxied=bool(spec.network.allow))


def probed(spec: SandboxSpec) -> SandboxSpec:
    """The spec as it is probed, without what has no part in the guarantees; a container's size
    has.
    """
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


def _shortfall(report: BackendReport, required: frozenset[str]) -> str:
    if report.problem is not None:
        return f"{report.backend} cannot be used: {report.problem}"
    missing = ", ".join(name for name in GUARANTEES if name in required - report.held)
    return f"{report.backend} does not give {missing} here"


@functools.cache
def _warn_of_unsafe() -> None:
    _log.warning(
        "sandbox backend 'unsafe': the code runs with all rights of this user, files and network "
        "included; only limits on time, memory and output hold"
    )
