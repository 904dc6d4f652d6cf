"""Run directory: the paths of everything of a run (docs/run-directory.md)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, StoreError
from agentrl.guards.regular_file import read_regular
from agentrl.store.disk import hold_name, os_refusals, write_bytes, write_json, write_text
from agentrl.store.jsonl import parse_line

FORMAT = 4
"""The layout's version, in ``run.json``; it grows when a reader of the old one would misread the
new one.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAX_BLOB = 2**30
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _RunPath:
    """A file or folder of a run, by its path from the root; an attribute of
    :class:`RunDirectory`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, run: RunDirectory, _: type[RunDirectory] | None = None) -> Path:
        return run.root / self._path


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of a run. ``create`` starts one, ``open`` finds one; the constructor only names paths.

    Args:
        root: the folder.
    """

    root: Path

    @classmethod
    def create(
        cls, root: Path | str, record: Mapping[str, Any] | None = None, config: str = ""
    ) -> RunDirectory:
        """Make a new run, whose ``run.json`` is ``record`` and the layout's ``format``.

        It exists from when ``run.json`` does; its configuration is written before.

        Raises:
            ConfigError: the folder holds files, or cannot be made.
            StoreError: a file cannot be written.
        """
        cls.check_new(root, config)
        run = cls(Path(root))
        try:
            folders = (
                run.live_folder,
                run.sealed_folder,
                run.annotations_folder,
                run.blobs_folder,
            )
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"RunDirectory.root='{root}' cannot be made: {error.strerror or error}; name a "
                "folder that you may write to"
            ) from error
        if config:
            write_text(run.config_path, config)
        write_json(run.record_path, {"format": FORMAT, **(record or {})})
        return run

    @classmethod
    def check_new(cls, root: Path | str, config: str = "") -> None:
        """Whether a new run may be made there.

        Raises:
            ConfigError: the folder holds files, other than a lock's, an engine's and ``config``,
                which a run leaves that ended before it existed.
        """
        run = cls(Path(root))
        walk = (
            Path(folder, name)
            for folder, _, names in os.walk(run.root)
            if not Path(folder).is_relative_to(run.engine_folder)
            for name in sorted(names)
        )
        found = next(
            (path.name for path in walk if not run._is_left_over(path, config)), None
        )
        if found is not None:
            what = f"files, such as {found}; name"
            if run.record_path.is_file():
                what = "a run; go on with it by --resume, or name"
            raise ConfigError(
                f"RunDirectory.root='{root}' must be a new or empty folder, and already holds "
                f"{what} another RunDirectory.root"
            )

    def _is_left_over(self, path: Path, config: str) -> bool:
        if self.record_path.is_file():
            return False
        return path == self.lock_path or (
            path == self.config_path
            and (not config or path.read_text(encoding="utf-8", errors="replace") == config)
        )

    @classmethod
    def open(cls, root: Path | str) -> RunDirectory:
        """Find an existing run.

        Raises:
            StoreError: there is none, or its layout is not that of this agentrl.
        """
        run = cls(Path(root))
        if not run.record_path.is_file():
            state = "has no run.json" if run.root.is_dir() else "does not exist"
            raise StoreError(
                f"'{root}' is not a run directory: it {state}; name the RunDirectory.root of a run"
            )
        run.read_record()
        return run

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from writing the run until the block, or this process, ends.

        Raises:
            HeldError: another process does it.
            StoreError: the lock's file cannot be made.
        """
        file = hold_name(self.lock_path, "name another RunDirectory.root")
        try:
            yield
        finally:
            os.close(file)

    def read_record(self) -> dict[str, Any]:
        """``run.json``.

        Raises:
            StoreError: it cannot be read as a JSON object, or the run's layout is not that of this
                agentrl.
        """
        path = self.record_path
        with os_refusals(f"{path} must be a JSON object"):
            record = parse_line(str(path), read_regular(path))
        if record.get("format") != FORMAT:
            raise StoreError(
                f"{path} has format={record.get('format')!r} and this agentrl reads {FORMAT}; use "
                "the one that made it, or make the run again"
            )
        return record

    config_path = _RunPath("config.resolved.yaml")
    """The resolved configuration."""

    record_path = _RunPath("run.json")
    """What ran: commit, versions, host, seeds. A folder is a run when it holds this file."""

    lock_path = _RunPath("run.lock")
    """Is locked by the process that trains or collects; it holds that one's id and host."""

    metrics_path = _RunPath("metrics.jsonl")
    """One JSON object a step."""

    phases_path = _RunPath("phases.jsonl")
    """When each step and its phases began and ended, an object a step."""

    events_path = _RunPath("events.jsonl")
    """Alerts, retries and failures (``EventLog``)."""

    ledger_path = _RunPath("ledger.jsonl")
    """Each change of state of each trajectory."""

    resumes_path = _RunPath("resumes.jsonl")
    """A line a resume: the last step of each stage that stands."""

    log_folder = _RunPath("logs")
    """A log of each process of the run (``LogFile``): ``driver.jsonl``, ``rank-0.jsonl``, ..."""

    heartbeat_path = _RunPath("heartbeat.json")
    """That the run lives (``Heartbeat``)."""

    now_path = _RunPath("now.json")
    """What the run does at the moment (``Heartbeat``)."""

    summary_path = _RunPath("summary.json")
    """What the run came to."""

    left_out_path = _RunPath("left_out.json")
    """The tasks that each stage leaves out for the length of their prompts."""

    live_folder = _RunPath("traj/live")
    """Trajectories that are not sealed yet."""

    sealed_folder = _RunPath("traj/sealed")
    """Trajectories for good."""

    dropped_folder = _RunPath("traj/dropped")
    """Which trajectories ``store.keep`` dropped, a file a writer (``DropLog``)."""

    annotations_folder = _RunPath("traj/ann")
    """What is learned of trajectories later."""

    live_annotations_folder = _RunPath("traj/ann/live")
    """Annotations that are not sealed yet."""

    sealed_annotations_folder = _RunPath("traj/ann/sealed")
    """Annotations for good."""

    annotation_columns_folder = _RunPath("traj/ann/columns")
    """The annotation columns that each writer declared."""

    engine_folder = _RunPath("engine")
    """Logs of servers, by stage; those of a policy that was played before it was trained are no
    run.
    """

    blobs_folder = _RunPath("blobs")
    """Images and other bytes, each named by its SHA-256."""

    pixels_folder = _RunPath("pixels")
    """Images as models read them, made of blobs; it may be deleted between runs."""

    notes_folder = _RunPath("notes")
    """What people wrote, a file a user."""

    checkpoints_folder = _RunPath("checkpoints")
    """Checkpoints by stage."""

    skipped_steps_folder = _RunPath("skipped_steps")
    """Mini-batches whose gradient was not finite, by stage."""

    models_folder = _RunPath("models")
    """The model that the run starts from in ``start``, and each finished stage's, in Hugging Face's
    layout.
    """

    def shard_path(self, step: int, writer: str, number: int) -> Path:
        """A sealed shard: trajectories that finished in ``step``."""
        return (
            self.sealed_folder
            / step_name(step)
            / f"{check_writer(writer)}-{number:04d}.parquet"
        )

    def write_blob(self, data: bytes, *, durable: bool = True) -> str:
        """Keep bytes once; their SHA-256 in hexadecimal is their name.

        Args:
            data: the bytes.
            durable: whether they outlive a power failure too. Where not, what one damaged is named
                by its hash when it is read.

        Raises:
            StoreError: they cannot be written.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.blobs_folder / sha256
        if not path.exists():
            write_bytes(path, data, durable=durable)
        return sha256

    def read_blob(self, sha256: str) -> bytes:
        """The bytes of that name.

        Raises:
            StoreError: there are none, or what is there has another hash.
        """
        if not _SHA256.fullmatch(sha256):
            raise StoreError(f"a blob is named by 64 hexadecimal digits, got {sha256!r}")
        with os_refusals(f"blob {sha256} cannot be read"):
            data = read_regular(self.blobs_folder / sha256, max_bytes=_MAX_BLOB)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(f"blob {sha256} is damaged: its bytes have another hash")
        return data


def step_name(step: int) -> str:
    """The folder of a step within the live and sealed folders."""
    return f"step={step:06d}"


def check_writer(writer: str) -> str:
    """The name of a writer, where it can be one.

    Raises:
        StoreError: it cannot be part of a file's name.
    """
    if not _NAME.fullmatch(writer):
        raise StoreError(
            f"a writer names files, so it must match {_NAME.pattern}, got {writer!r}"
        )
    return writer
