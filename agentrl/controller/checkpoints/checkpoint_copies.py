"""Checkpoint copies: whole checkpoints of a stage at a URL, laid out as in the run directory.

- A copy exists once its manifest does, which is written last.
- Beside them lie the files of the run that a resume needs, from before the manifest was written.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from pathlib import Path

from agentrl.controller.checkpoints.stage_checkpoints import (
    MANIFEST,
    Manifest,
    whole_checkpoints,
)
from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.store.disk import replacing_folder
from agentrl.store.remote_folder import RemoteFolder

logger = logging.getLogger(__name__)

SETTING = "checkpoint.copy_to"
_LONGEST_S = 1800.0
"""That a copy is waited for; an object store answers or refuses long before."""


class CheckpointCopies:
    """Copies the checkpoints of one stage beside its training, one at a time.

    Args:
        url: a folder, as ``s3://bucket/runs/a``.
        run: whose checkpoints they are.
        stage: its name.

    Raises:
        ConfigError: the URL cannot be read here.
    """

    def __init__(self, url: str, run: RunDirectory, stage: str) -> None:
        self._remote = RemoteFolder(url, SETTING)
        self._run = run
        self._stage = stage
        self._folder = ""
        # by an earlier attempt of the run
        self._copied = set(whole_checkpoints(run.checkpoints_folder / stage))
        # copies one checkpoint and ends; ``failure`` joins it
        self._thread: threading.Thread | None = None
        self._given_up: threading.Thread | None = None
        self._error: StoreError | None = None

    def begin(self, checkpoint: Path) -> None:
        """Copies a checkpoint that exists; of the one before ``failure`` has been asked."""
        self._error = None
        self._thread = threading.Thread(
            target=self._copy,
            args=(checkpoint, self._given_up),
            name="copy of a checkpoint",
            daemon=True,
        )
        self._folder = str(checkpoint)
        self._thread.start()

    def failure(self, *, wait: bool) -> tuple[str, StoreError] | None:
        """What there is no copy of, and why; told once.

        Args:
            wait: until the copy that is being made has come to its end.
        """
        if self._thread is None:
            return None
        self._thread.join(_LONGEST_S if wait else 0)
        error = self._error
        if self._thread.is_alive():
            if not wait:
                return None
            error = StoreError(f"{self._remote.url} took no copy in {_LONGEST_S:.0f} s")
            # It may still write, so that the next waits for it; a daemon, it holds up no exit.
            self._given_up = self._thread
        self._thread = None
        if error is None:
            return None
        return f"there is no copy of checkpoint {self._folder} in {self._remote.url}", error

    def _copy(self, checkpoint: Path, after: threading.Thread | None) -> None:
        if after is not None:
            after.join()
        start = time.monotonic()
        try:
            size = self._put(checkpoint)
        except StoreError as error:
            self._error = error
            return
        fields = {
            "path": str(checkpoint),
            "url": self._remote.url,
            "bytes": size,
            "seconds": time.monotonic() - start,
            "stage": self._stage,
        }
        logger.info(
            "checkpoint %(path)s copied to %(url)s in %(seconds).2f s",
            fields,
            extra={"event": "checkpoint_copied", **fields},
        )

    def _put(self, checkpoint: Path) -> int:
        """Writes the copy, then removes those whose checkpoints are no longer kept; its bytes."""
        at = _place(self._stage, checkpoint.name)
        self._remote.remove(f"{at}/{MANIFEST}")  # of an attempt that was given up
        files = Manifest.of((checkpoint / MANIFEST).read_text("utf-8")).files
        for name in files:
            self._remote.put(checkpoint / name, f"{at}/{name}")
        # These files may be newer than the checkpoint, never older; a resume rolls them back.
        for path in _run_files(self._run):
            if path.is_file():
                self._remote.put(path, path.name)
        self._remote.put(checkpoint / MANIFEST, f"{at}/{MANIFEST}")
        self._copied.add(checkpoint)
        for gone in [one for one in self._copied if not (one / MANIFEST).is_file()]:
            old = _place(self._stage, gone.name)
            # The manifest goes first: what a death leaves then is no copy.
            self._remote.remove(f"{old}/{MANIFEST}")
            self._remote.remove(old)
            self._copied.discard(gone)
        return sum(files.values())


def fetch_run(url: str, run: RunDirectory, stages: list[str]) -> bool:
    """Makes a run directory of the files beside the copies at ``url``.

    One process does it at a time, under the lock that the run has later. What is fetched lies
    beside the run's folder until all of it is there.

    Returns:
        False where there is no copy of any of the stages.

    Raises:
        HeldError: another process does it.
        ConfigError: the folder holds other files, or the URL cannot be read here.
        StoreError: the files cannot be read.
    """
    remote = RemoteFolder(url, SETTING)
    if not any(_newest(remote, stage) for stage in stages):
        return False
    part = RunDirectory(run.root.with_name(f".{run.root.name}.part"))
    with part.held():
        try:
            # another process may have fetched it since it was looked for
            if not run.record_path.is_file():
                _fetch_files(remote, part)
                RunDirectory.check_new(run.root)
                # a rename takes no full folder's place
                shutil.rmtree(run.root, ignore_errors=True)
                part.root.rename(run.root)
        finally:
            shutil.rmtree(part.root, ignore_errors=True)
    return True


def _fetch_files(remote: RemoteFolder, part: RunDirectory) -> None:
    """The run's files, in place of what a death left but the lock, which this process holds."""
    for path in part.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != part.lock_path:
            path.unlink()
    record, config, *others = _run_files(part)
    RunDirectory.create(
        part.root, json.loads(remote.text(record.name)), remote.text(config.name)
    )
    for path in others:
        if remote.has(path.name):
            remote.get(path.name, path)


def fetch_newest(url: str, stage: str, folder: Path) -> Path | None:
    """Fetches the newest copy of a stage's checkpoints.

    Args:
        url: of ``CheckpointCopies``.
        stage: its name.
        folder: of the stage's checkpoints in the run directory.

    Returns:
        The checkpoint; None where there is no copy.

    Raises:
        StoreError: a file of the copy is missing or has another size than was written.
    """
    remote = RemoteFolder(url, SETTING)
    newest = _newest(remote, stage)
    if newest is None:
        return None
    at = _place(stage, newest)
    manifest = remote.text(f"{at}/{MANIFEST}")
    remedy = f"the copy is corrupt; delete {remote.url}/{at} to resume from the one before"
    with replacing_folder(folder / newest) as part:
        for name, size in Manifest.of(manifest).files.items():
            path = part / name
            if not remote.has(f"{at}/{name}"):
                raise StoreError(f"{remote.url}/{at}/{name} is missing: {remedy}")
            remote.get(f"{at}/{name}", path)
            if path.stat().st_size != size:
                raise StoreError(
                    f"{remote.url}/{at}/{name} has {path.stat().st_size} bytes instead of {size}: "
                    f"{remedy}"
                )
        (part / MANIFEST).write_text(manifest, encoding="utf-8")
    return folder / newest


def _newest(remote: RemoteFolder, stage: str) -> str | None:
    """The name of the newest whole copy; folders without a manifest never were one."""
    for name in reversed(remote.names(_place(stage))):
        if name.startswith("step=") and remote.has(f"{_place(stage, name)}/{MANIFEST}"):
            return name
    return None


def _place(*parts: str) -> str:
    return "/".join(("checkpoints", *parts))


def _run_files(run: RunDirectory) -> tuple[Path, ...]:
    """What a resume reads beside the checkpoints: the record and the configuration first."""
    return (
        run.record_path,
        run.config_path,
        run.ledger_path,
        run.metrics_path,
        run.phases_path,
        run.resumes_path,
    )
