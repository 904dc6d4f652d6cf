"""Sandbox interface: run code or a program within limits, move files, start afresh, end."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from agentrl.types.section import Count, Natural, Section

from .host.files import cut_lines

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


Persist = Literal["files", "interpreter"]
Status = Literal["ok", "error", "timeout", "oom", "killed", "output_limit"]
MAX_LISTED = 10_000
"""Files of one listing."""


class FileRefusedError(ValueError):
    """A path or file that a sandbox does not read or write: absent, outside, a link, a device, too
    large.

    The fault of the caller that named the file, often the model; never a failure of the sandbox.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What the code did. A sandbox's own failure is never a result: it raises ``SandboxError``.

    Attributes:
        status: ``ok`` exit code 0; ``error`` another exit code or a signal of its own making;
            ``timeout`` wall or processor time spent; ``oom`` memory spent; ``output_limit`` stdout
            or stderr passed its limit; ``killed`` ended by SIGKILL, by another limit or by the
            caller.
        exit_code: None where a signal ended the code.
        signal: the number of that signal, or None.
        stdout, stderr: bytes as written, up to the limit; kept whatever the status.
        stdout_truncated, stderr_truncated: whether the code wrote more than was kept.
        wall_s: seconds from the start of the execution to its end.
        queued_s: seconds before that, in which the run waited for its turn; no deadline counts
            them.
        cpu_s: user and system seconds of all its processes.
        files: contents of the files asked for by ``fetch``, by path.
        refused_files: why a file asked for is not in ``files``, by path.
        interpreter_ended: whether variables that were kept for later runs are lost: the interpreter
            ended in this run, or had ended before it; ``detail`` says which.
        detail: one line on what ended the run, for people; empty for a plain exit.
    """

    status: Status
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    refused_files: Mapping[str, str] = field(default_factory=dict)
    interpreter_ended: bool = False
    detail: str = ""

    @property
    def truncated(self) -> bool:
        """Whether either output was cut at its limit."""
        return self.stdout_truncated or self.stderr_truncated


@dataclass(frozen=True, slots=True)
class FileHash:
    """A regular file of a working folder, as it was at one moment.

    Attributes:
        num_bytes: its size.
        sha256: of its contents, in hexadecimal; empty where it is larger than was asked for, or
            cannot be read.
    """

    num_bytes: int
    sha256: str


class Sandbox(ABC):
    """One session: files persist over its runs until :meth:`reset`, and where asked for an
    interpreter's variables.

    Temporary files do not: each run finds its temporary folder empty, but those of an interpreter
    that persists.

    Nothing reaches another session. Usable from any event loop and thread; the runs of one sandbox
    happen one after another. Every method raises ``SandboxError`` where the sandbox itself failed;
    :meth:`reset` then gives a fresh one.
    """

    limits: Limits

    @property
    def notes(self) -> str:
        """What is worth knowing of the backend on this machine (kernel, uid), once a sandbox has
        run; for people.
        """
        return ""

    async def start(self) -> None:
        """Start now what the first use would start; a backend that has nothing to start leaves this
        as it is.

        Raises:
            SandboxError: it did not start, or not in time; another may.
            MachineError: this machine cannot start one.
        """
        return None

    @abstractmethod
    async def run(
        self,
        code: str | bytes | None = None,
        *,
        argv: Sequence[str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        persist: Persist | None = None,
    ) -> ExecResult:
        """Run Python ``code``, or the program ``argv``, in the working folder.

        Args:
            code: Python source; text or UTF-8 bytes. Any content runs: what is wrong with it is a
                result.
            argv: a program and its arguments instead of ``code``.
            stdin: what the code reads; then end of file.
            timeout_s: replaces ``limits.wall_s``; counts from the start of the execution.
            files: written before the run, by path relative to the working folder.
            fetch: files to bring back afterwards, by path relative to the working folder.
            env: variables beyond the sandbox's own few; the owner's are never passed.
            limits: replaces the sandbox's own for this run.
            persist: ``files`` runs the code in a fresh interpreter; ``interpreter`` in the one that
                keeps its variables over such runs of this sandbox, until a run is ended by force or
                ends it; None as the sandbox was made. A program (``argv``) is always a process of
                its own.

        Raises:
            ValueError: neither or both of ``code`` and ``argv``, or an argument or variable that no
                program can take.
            FileRefusedError: a path in ``files`` or its size is refused; nothing has run.
            ConfigError: ``timeout_s`` is negative, zero or not finite; or ``limits`` changes for an
                interpreter that keeps its variables what only its start can set (``memory_bytes``,
                ``processes``, ``file_bytes``, ``open_files``).
            SandboxError: the sandbox failed; nothing is known about the code.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace a file of the working folder.

        Raises:
            FileRefusedError: the path leaves the folder or is no plain file's, or ``data`` passes
                the limit.
        """

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """The contents of a regular file of the working folder.

        Raises:
            FileRefusedError: absent, outside, a link, a device, or larger than
                ``limits.file_bytes``.
        """

    async def read_lines(
        self, path: str, first: int = 1, last: int | None = None, *, max_bytes: int
    ) -> tuple[bytes, int, bool]:
        """Some lines of a regular file of the working folder, without moving the others.

        A backend may do without a method of its own: this one reads the whole file.

        Args:
            path: of the file.
            first, last: numbers of lines from 1, both inclusive; None is the end.
            max_bytes: after which the lines are cut.

        Returns:
            The lines, the number of lines of the whole file, and whether these were cut.

        Raises:
            FileRefusedError: as :meth:`read_file`.
        """
        return cut_lines(await self.read_file(path), first, last, max_bytes)

    @abstractmethod
    async def list_files(self) -> Mapping[str, int]:
        """Sizes in bytes of the regular files of the working folder, by path (10,000 at most)."""

    async def hash_files(self, largest: int) -> tuple[Mapping[str, FileHash], bool]:
        """What the regular files of the working folder are, without moving their contents.

        A backend may do without a method of its own: this one reads each file.

        Args:
            largest: bytes of the largest file that is hashed.

        Returns:
            The files by path, 10,000 at most, and whether these are all.
        """
        listed = await self.list_files()
        found = {}
        for path, num_bytes in listed.items():
            sha256 = ""
            if num_bytes <= largest:
                try:
                    sha256 = hashlib.sha256(await self.read_file(path)).hexdigest()
                except FileRefusedError:
                    # a link or a closed file by now
                    sha256 = ""
            found[path] = FileHash(num_bytes, sha256)
        return found, len(listed) < MAX_LISTED

    @abstractmethod
    async def reset(self) -> None:
        """End everything that runs and start afresh with an empty folder."""

    @abstractmethod
    async def close(self) -> None:
        """End everything and remove every file; a second call does nothing."""

    @abstractmethod
    def kill_now(self) -> None:
        """End everything at once without waiting; for exit paths, and safe to call from any
        thread.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
