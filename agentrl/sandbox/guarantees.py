"""Guarantees: the words that every backend answers and a configuration may require."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentrl.errors import ConfigError, did_you_mean

GUARANTEES: Mapping[str, str] = MappingProxyType(
    {
        "files": "reads and writes nothing but its own folder and the system's programs",
        "secrets": "sees no environment or memory of another process",
        "network": "no socket of any family: no TCP, UDP, unix, vsock or raw traffic; where hosts "
        "are allowed, nothing but the way to the proxy",
        "processes": "signals and traces nothing outside itself, and nothing outlives a run",
        "kernel": "no namespaces, mounts, io_uring, BPF, keys, modules or foreign system call "
        "tables",
        "memory": "memory is bounded, for one process and for all of a run together",
        "user": "runs under a uid that nothing else uses, never as root",
        "disk": "all files together are bounded by the kernel; without it code may take space of a "
        "file system that others use, down to Limits.reserve_bytes, before its run is ended for it",
    }
)

LEVELS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "none": frozenset(),
        "isolated": frozenset(
            {"files", "secrets", "network", "processes", "kernel", "memory"}
        ),
        "full": frozenset(GUARANTEES),
    }
)


def parse_require(require: str | Iterable[str]) -> frozenset[str]:
    """The guarantees that a value of ``SandboxSpec.require`` asks for.

    Args:
        require: a level, a guarantee, or several of either.

    Raises:
        ConfigError: a word is neither.
    """
    asked: set[str] = set()
    for word in [require] if isinstance(require, str) else require:
        if word in LEVELS:
            asked |= LEVELS[word]
        elif word in GUARANTEES:
            asked.add(word)
        else:
            known = [*LEVELS, *GUARANTEES]
            hint = did_you_mean(str(word), known, f"use one of {', '.join(known)}")
            raise ConfigError(
                f"SandboxSpec.require: {word!r} is neither a level nor a guarantee{hint}",
                fields=["SandboxSpec.require"],
            )
    return frozenset(asked)


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What one backend was seen to guarantee on this machine.

    Attributes:
        backend: its name.
        held: the words of ``GUARANTEES`` that held when tried.
        problem: why the backend cannot be used here; None where it can.
        notes: what was found out on the way (kernel ABI, uid), for people.
    """

    backend: str
    held: frozenset[str] = frozenset()
    problem: str | None = None
    notes: str = ""

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.backend}: cannot be used: {self.problem}"
        held = ", ".join(name for name in GUARANTEES if name in self.held) or "nothing"
        missing = ", ".join(name for name in GUARANTEES if name not in self.held)
        without = f"; does not promise {missing}" if missing and self.held else ""
        notes = f" ({self.notes})" if self.notes else ""
        return f"{self.backend}: guarantees {held}{without}{notes}"
