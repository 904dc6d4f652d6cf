"""Limits: what one run may use."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator

from agentrl.types.section import Count, Natural, Section

MIN_MEMORY_BYTES = 32 * 2**20
_MIN_OPEN_FILES = 16
_MAX_WALL_S = 24 * 3600.0

_Deadline: TypeAlias = Annotated[float, Field(gt=0, le=_MAX_WALL_S)]
# of one output or file: each is held in memory while it moves
_Moved: TypeAlias = Annotated[int, Field(ge=1, le=512 * 2**20)]


class Limits(Section):
    """What one execution may use; passing a limit ends it and is a result that the model sees."""

    wall_s: _Deadline = 10.0
    """Seconds of wall time."""
    cpu_s: _Deadline | None = None
    """Seconds of processor time of one process; by default bounded by ``wall_s`` alone."""
    memory_bytes: Count = 512 * 2**20
    """Memory, of one process beyond the warm interpreter's own and of all together."""
    processes: Count = 32
    """Processes and threads at one time."""
    file_bytes: _Moved = 64 * 2**20
    """Size of one file, also of one that is uploaded or fetched."""
    disk_bytes: Count = 256 * 2**20
    """All files together; where the backend guarantees ``disk`` by the kernel, else by a watch
    twice a second.
    """
    max_files: Count = 20_000
    """Files and folders together; likewise."""
    output_bytes: _Moved = 2**20
    """Standard output and standard error, each."""
    open_files: Count = 256
    """Descriptors of one process."""
    reserve_bytes: Natural | None = None
    """Free space that the file system of the sandboxes keeps, where the backend does not guarantee
    ``disk``: with less left, executions that took their part of it are ended, and the others fail
    as infrastructure. By default half a gigabyte, or a tenth of a file system below five.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise self.broken(
                "memory_bytes",
                f"={self.memory_bytes} is below the {MIN_MEMORY_BYTES} bytes that an interpreter "
                "needs by itself; raise it",
            )
        if self.open_files < _MIN_OPEN_FILES:
            raise self.broken(
                "open_files",
                f"={self.open_files} is below the {_MIN_OPEN_FILES} that an interpreter needs by "
                "itself; raise it",
            )
        if self.file_bytes > self.disk_bytes:
            raise self.broken(
                "file_bytes",
                f"={self.file_bytes} exceeds disk_bytes={self.disk_bytes}, which holds all files "
                "together; lower file_bytes or raise disk_bytes",
            )
        return self
