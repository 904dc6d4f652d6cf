"""Sandboxes: run a model's code behind one interface, in backends with measured guarantees."""

from __future__ import annotations

from .backends import BACKENDS, Backend
from .docker import DockerSettings
from .guarantees import GUARANTEES, LEVELS, BackendReport
from .interface import (
    ExecResult,
    FileHash,
    FileRefusedError,
    Limits,
    Persist,
    Sandbox,
    Status,
)
from .pool import PoolCounts, SandboxPool
from .sandbox_spec import BackendFactory, SandboxSpec, probe_backends

__all__ = [
    "BACKENDS",
    "GUARANTEES",
    "LEVELS",
    "Backend",
    "BackendFactory",
    "BackendReport",
    "DockerSettings",
    "ExecResult",
    "FileHash",
    "FileRefusedError",
    "Limits",
    "Persist",
    "PoolCounts",
    "Sandbox",
    "SandboxPool",
    "SandboxSpec",
    "Status",
    "probe_backends",
]
