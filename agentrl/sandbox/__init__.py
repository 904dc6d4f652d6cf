"""Sandboxes for the model's code: one interface, backends that say what they guarantee, and a pool."""

from __future__ import annotations

from .guarantees import GUARANTEES, LEVELS, BackendReport
from .interface import ExecResult, FileRefusedError, Sandbox, Status
from .limits import Limits
from .pool import SandboxPool
from .spec import BACKENDS, SandboxSpec, probe_backends

__all__ = [
    "BACKENDS",
    "GUARANTEES",
    "LEVELS",
    "BackendReport",
    "ExecResult",
    "FileRefusedError",
    "Limits",
    "Sandbox",
    "SandboxPool",
    "SandboxSpec",
    "Status",
    "probe_backends",
]
