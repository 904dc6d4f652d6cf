"""What one run may use, and the check that says which limit is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from agentrl.errors import ConfigError

MIN_MEMORY_BYTES = 32 * 2**20
_MAX_WALL_S = 24 * 3600.0
_MAX_MOVED_BYTES = 512 * 2**20  # of one output or file: each is held in memory while it moves


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run; a limit that is passed ends the run and is a result, never an error.

    Attributes:
        wall_s: seconds of wall time.
        cpu_s: seconds of processor time of one process; None leaves it to ``wall_s``.
        memory_bytes: memory of one process beyond the warm interpreter's own, and of all processes together.
        processes: processes and threads at one time.
        file_bytes: size of one file, also of one that is uploaded or fetched.
        disk_bytes: all files of the sandbox together; where the backend guarantees ``disk`` by the kernel, else by a
            watch twice a second.
        max_files: files and folders of the sandbox together; likewise.
        output_bytes: stdout and stderr, each.
        open_files: descriptors of one process.
        reserve_bytes: free space of the file system that holds the sandboxes, where the backend does not guarantee
            ``disk``: with less left, a run that has its part in that is ended, and any other is a failure of the
            sandbox. None takes half a gigabyte, or a tenth of a file system below five.

    Raises:
        ConfigError: a limit is not finite, not positive, or below what an interpreter needs.
    """

    wall_s: float = 10.0
    cpu_s: float | None = None
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    file_bytes: int = 64 * 2**20
    disk_bytes: int = 256 * 2**20
    max_files: int = 20_000
    output_bytes: int = 2**20
    open_files: int = 256
    reserve_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("wall_s", "cpu_s"):
            value = getattr(self, name)
            if value is None and name == "cpu_s":
                continue
            if not (_is_number(value) and math.isfinite(value) and 0 < value <= _MAX_WALL_S):
                raise ConfigError(
                    f"sandbox.limits.{name} must be a number of seconds above 0 and at most {_MAX_WALL_S:g}, "
                    f"got {value!r}; every run needs a deadline"
                )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("wall_s", "cpu_s") or (
                field.name == "reserve_bytes" and value is None
            ):
                continue
            least = 0 if field.name == "reserve_bytes" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"sandbox.limits.{field.name} must be a whole number of at least {least}, got {value!r}"
                )
        for name in ("output_bytes", "file_bytes"):
            if getattr(self, name) > _MAX_MOVED_BYTES:
                raise ConfigError(
                    f"sandbox.limits.{name} must be at most {_MAX_MOVED_BYTES}, since outputs and files are held in "
                    f"memory while they move, got {getattr(self, name)}; lower it"
                )
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ConfigError(
                f"sandbox.limits.memory_bytes={self.memory_bytes} is below the {MIN_MEMORY_BYTES} bytes that an "
                "interpreter needs by itself; raise it"
            )
        if self.open_files < 16:
            raise ConfigError(
                f"sandbox.limits.open_files={self.open_files} is below the 16 that an interpreter needs by itself; "
                "raise it"
            )
        if self.file_bytes > self.disk_bytes:
            raise ConfigError(
                f"sandbox.limits.file_bytes={self.file_bytes} exceeds disk_bytes={self.disk_bytes}, which holds all "
                "files together; lower file_bytes or raise disk_bytes"
            )

    def as_dict(self) -> dict[str, Any]:
        """The limits by name, for the host."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
