"""Stage checkpoints: a folder a step, which is a checkpoint once its manifest was renamed into
place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints.saved_groups import (
    read_groups,
    read_running,
    write_groups,
    write_running,
)
from agentrl.controller.state import TrainState
from agentrl.errors import ConfigError, DataError, StoreError
from agentrl.rollouts.samplers.prompt_sampler import SamplerState
from agentrl.store import write_json

MANIFEST = "manifest.json"
_GROUPS = "waiting_groups"
_UNOBSERVED = "unobserved_groups"
_RUNNING = "running_groups.pickle"
_OWN_FILES = ("groups", "unobserved", "running")
"""What of a ``RolloutState`` lies in files of its own, beside the manifest; groups by policy."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is of, beside the tensors.

    Args:
        stage: the stage's name.
        state: of the loop.
        rollouts: draws to issue again and where the data order goes on.
        results: evaluations made so far, as in ``summary.json``.
        evaluated: numbers of the step's own evaluation, by metric.
        evaluating: the evaluation that was interrupted, and that a resume makes up for.
        uncounted: draws that had come to their end and were in no step's metrics.
        files: size in bytes of every file of the checkpoint, by relative path.
    """

    stage: str
    state: TrainState
    rollouts: RolloutState
    results: Mapping[str, Any] = field(default_factory=dict)
    evaluated: Mapping[str, float] = field(default_factory=dict)
    evaluating: str = ""
    uncounted: tuple[int, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Manifest:
        """The manifest of its file's text, without what lies in files of its own.

        Raises:
            StoreError: it is no manifest.
        """
        try:
            raw = json.loads(text)
            rollouts = raw.pop("rollouts")
            rollouts["outstanding"] = tuple(rollouts["outstanding"])
            rollouts["sampler"] = SamplerState.of_record(rollouts["sampler"])
            raw["uncounted"] = tuple(raw["uncounted"])
            state = TrainState(**raw.pop("state"))
            return cls(**raw, state=state, rollouts=RolloutState(**rollouts))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{MANIFEST} cannot be read ({error})") from error


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a stage's folder, the newest last; a folder without a manifest is none."""
    # Numbers have leading zeros, and `step=000100.001` sorts behind `step=000100`.
    return sorted(path.parent for path in folder.glob(f"step=*/{MANIFEST}"))


def newest_step(folder: Path) -> int:
    """That of a stage's newest checkpoint; 0 without one."""
    return max(map(step_of, whole_checkpoints(folder)), default=0)


def set_unreadable_aside(folder: Path) -> list[str]:
    """Newest checkpoints of a stage that cannot be read are none any more, so that the one before
    is the newest; what is wrong with each."""
    found: list[str] = []
    while True:
        try:
            Checkpoints(folder, keep_last=0).latest()
            return found
        except (DataError, StoreError) as error:
            set_aside(whole_checkpoints(folder)[-1])
            found.append(str(error))


def set_aside(checkpoint: Path) -> None:
    """The folder is no checkpoint any more; its files stay until the next one is kept."""
    (checkpoint / MANIFEST).rename(checkpoint / f"unreadable.{MANIFEST}")


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was made."""
    return int(checkpoint.name.partition(".")[0].removeprefix("step="))


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one stage, in ``<folder>/step=000100/``; a later one of the same step,
    with more of its rollouts done, lies in ``step=000100.001/`` and supersedes it.

    Args:
        folder: the stage's folder.
        keep_last: how many are kept; older ones are deleted once a newer one exists. 0 keeps all.
        keep_best: the metric whose best checkpoint is kept besides.
    """

    folder: Path
    _: KW_ONLY
    keep_last: int
    keep_best: str | None = None

    def begin(self, step: int) -> Path:
        """An empty folder for the tensors of ``step``; what an interrupted attempt left there is
        removed.

        A checkpoint of that step which stands is never touched before the new one exists.
        """
        standing = [
            path for path in whole_checkpoints(self.folder) if step_of(path) == step
        ]
        numbers = [int(path.name.partition(".")[2] or 0) for path in standing]
        suffix = f".{max(numbers) + 1:03d}" if numbers else ""
        folder = self.folder / f"step={step:06d}{suffix}"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def abandon(self, folder: Path) -> None:
        """What could not be written whole takes no space of what has to be written now."""
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)

    def commit(self, folder: Path, manifest: Manifest) -> None:
        """Makes the checkpoint exist, then deletes those that are no longer kept, and what was
        never one."""
        rollouts = manifest.rollouts
        write_groups(folder / _GROUPS, rollouts.groups)
        write_groups(folder / _UNOBSERVED, rollouts.unobserved)
        if rollouts.running:
            write_running(folder / _RUNNING, rollouts.running)
        files = {
            str(p.relative_to(folder)): p.stat().st_size
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        }
        in_manifest = replace(rollouts, groups=(), unobserved=(), running=())
        record = asdict(replace(manifest, rollouts=in_manifest, files=files))
        for name in _OWN_FILES:
            del record["rollouts"][name]
        write_json(folder / MANIFEST, record)
        if self.keep_last:
            # of each step
            newest = {step_of(path): path for path in whole_checkpoints(self.folder)}
            last = list(newest.values())[-self.keep_last :]
            kept = {*last, *self._best(newest.values())}
            for old in set(self.folder.glob("step=*")) - kept:
                # The manifest goes first: a death in the midst leaves what counts for nothing.
                (old / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(old)

    def latest(self) -> tuple[Path, Manifest] | None:
        """The newest checkpoint; folders without a manifest never were one.

        Raises:
            DataError: its manifest cannot be read, or a file that it names is missing or has
                another size.
        """
        whole = whole_checkpoints(self.folder)
        if not whole:
            return None
        folder = whole[-1]
        try:
            manifest = Manifest.of((folder / MANIFEST).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, StoreError) as error:
            raise self._corrupt(folder, str(error)) from error
        for name, size in manifest.files.items():
            path = folder / name
            found = f"{path.stat().st_size} bytes" if path.is_file() else "nothing"
            if found != f"{size} bytes":
                raise self._corrupt(
                    folder, f"{name} should have {size} bytes, found {found}"
                )
        groups, unobserved = (read_groups(folder / name) for name in (_GROUPS, _UNOBSERVED))
        try:
            running = read_running(folder / _RUNNING) if _RUNNING in manifest.files else ()
        except StoreError as error:
            what = f"checkpoint {folder} cannot be resumed: {error}"
            raise DataError(f"{what}; {self._remedy(folder)}") from error
        rollouts = replace(
            manifest.rollouts, groups=groups, unobserved=unobserved, running=running
        )
        return folder, replace(manifest, rollouts=rollouts)

    def check_metric(self, evaluated: Mapping[str, float]) -> None:
        """Refuses a ``keep_best`` that an evaluation did not give.

        Raises:
            ConfigError: it is none of its metrics.
        """
        if self.keep_best is not None and self.keep_best not in evaluated:
            raise ConfigError(
                f"checkpoint.keep_best={self.keep_best!r} must be a metric of the evaluation, "
                f"which gave {', '.join(sorted(evaluated)) or 'none'}; name one of them"
            )

    def best(self) -> Path | None:
        """The checkpoint with the highest ``keep_best``, the newest of several; None where no
        evaluation of a step with a checkpoint had the metric."""
        return next(iter(self._best(whole_checkpoints(self.folder))), None)

    def _best(self, whole: Iterable[Path]) -> list[Path]:
        """At most one of them."""
        if self.keep_best is None:
            return []
        values = []
        for path in whole:
            try:
                manifest = Manifest.of((path / MANIFEST).read_text(encoding="utf-8"))
                value = manifest.evaluated.get(self.keep_best)
            # another one is resumed from
            except (OSError, UnicodeDecodeError, StoreError):
                continue
            if value is not None:
                values.append((value, path))
        return [max(values)[1]] if values else []

    def _corrupt(self, folder: Path, what: str) -> DataError:
        return DataError(f"checkpoint {folder} is corrupt: {what}; {self._remedy(folder)}")

    def _remedy(self, folder: Path) -> str:
        others = [path.name for path in whole_checkpoints(self.folder) if path != folder]
        then = f"to resume from {others[-1]}" if others else "to start the stage again"
        return f"delete it {then}"
