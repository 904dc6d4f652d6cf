"""Retention: which trajectories a run keeps, what it notes of those dropped, and the log of it.

A line is durable before the shard shrinks. So after a death a dropped id may still be there, which
then counts, and none is gone without a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.disk import Stamp, stamps_of
from agentrl.store.jsonl import Damage, JsonlWriter, read_jsonl
from agentrl.store.run_directory import RunDirectory
from agentrl.store.store_spec import KeepSpec
from agentrl.types.user_code.values import shown


@dataclass(frozen=True, slots=True)
class DropRecord:
    """What was dropped of one stage's trajectories in one shard.

    Args:
        shard: its path from the run's root.
        stage: whose trajectories; those of others in the shard are not counted.
        step: of its folder.
        of: the trajectories before.
        kept: those that stay.
        newest: the last ``recorded_at`` among them.
        dropped: the ids of the others.
    """

    shard: str
    stage: str
    step: int
    of: int
    kept: int
    newest: float
    dropped: tuple[str, ...]

    @classmethod
    def of_line(cls, record: dict[str, Any]) -> DropRecord:
        """From a line.

        Raises:
            StoreError: it is none.
        """
        try:
            own = {name: record[name] for name in cls.__slots__}
            return cls(**{**own, "dropped": tuple(own["dropped"])})
        except (KeyError, TypeError) as error:
            raise StoreError(
                f"{shown(record, 200)} is no record of a drop: {error!r}"
            ) from error


class DropLog:
    """The file of one writer; made when something is dropped first. Used by one thread."""

    def __init__(self, run: RunDirectory, writer: str) -> None:
        self.path = run.dropped_folder / f"{writer}.jsonl"
        self._file: JsonlWriter | None = None

    def append(self, record: DropRecord) -> None:
        """Write down a drop that is about to happen, durably.

        Raises:
            StoreError: it cannot be written.
        """
        if self._file is None:
            self._file = JsonlWriter(self.path)
        self._file.append(asdict(record))
        self._file.sync()

    def records(self) -> list[DropRecord]:
        """What it holds, also of earlier writers of the name.

        Raises:
            StoreError: the file cannot be read, or a whole line of it.
        """
        return list(map(DropRecord.of_line, read_jsonl(self.path)))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()


def find_drop(run: RunDirectory, trajectory_id: str) -> DropRecord | None:
    """The newest record of a trajectory's drop; None where none names it.

    Raises:
        StoreError: a file cannot be read.
    """
    found = None
    for path in sorted(run.dropped_folder.glob("*.jsonl")):
        for line in read_jsonl(path):
            record = DropRecord.of_line(line)
            if trajectory_id in record.dropped:
                found = record
    return found


def kept_by_stage(
    run: RunDirectory, on_damage: Damage
) -> dict[str, dict[int, tuple[int, int]]]:
    """How many trajectories each step kept, and of how many, by stage and step; steps that are
    whole are left out.

    Args:
        run: the run.
        on_damage: is told of a line that cannot be read.
    """
    shards: dict[tuple[str, str], tuple[int, int, int]] = {}
    for path in sorted(run.dropped_folder.glob("*.jsonl")):
        for line in read_jsonl(path, on_damage):
            try:
                record = DropRecord.of_line(line)
            except StoreError as error:
                on_damage(error)
                continue
            # a shard may shrink again when the rules change: it had what it had at first
            place = (record.stage, record.shard)
            _, _, of = shards.get(place, (0, 0, record.of))
            shards[place] = (record.step, record.kept, of)
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for (stage, _), (step, kept, of) in sorted(shards.items()):
        own = found.setdefault(stage, {})
        kept_before, of_before = own.get(step, (0, 0))
        own[step] = (kept_before + kept, of_before + of)
    return found


KEEP_COLUMNS = (
    "id",
    "group_index",
    "step",
    "label",
    "purpose",
    "stage",
    "reward",
    "recorded_at",
)
"""What the rules and their application look at."""


def fits(keep: KeepSpec, row: Mapping[str, Any]) -> bool:
    """Whether a trajectory that is older than ``last_steps`` stays by another rule.

    Args:
        keep: the rules.
        row: its columns.
    """
    reward = row["reward"]
    return (
        (keep.every_steps is not None and row["step"] % keep.every_steps == 0)
        or (keep.share is not None and _place(row) < keep.share)
        or (
            keep.reward_below is not None
            and reward is not None
            and reward < keep.reward_below
        )
        or (
            keep.reward_above is not None
            and reward is not None
            and reward > keep.reward_above
        )
        or any(_bears(row, label) for label in keep.labels)
    )


def _place(row: Mapping[str, Any]) -> float:
    """A number from 0 to 1 that a group has in every process; its rollouts stay together."""
    name = f"{row['stage']}/{row['label']}/{row['group_index']}"
    # Python's own `hash` of a text is another number in each process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2.0**64


def _bears(row: Mapping[str, Any], label: str) -> bool:
    own = row["label"]
    return label in (row["purpose"], own) or (
        own != "" and f"{own}/".startswith(f"{label}/")
    )


class UnreadableNotesError(StoreError):
    """It is not known which trajectories have notes."""


class NotedTrajectories:
    """The trajectories that notes of a run are about; read again when a file of them changed.

    Args:
        run: whose notes.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.notes_folder
        self._stamps: dict[Path, Stamp | None] = {}
        self._ids: frozenset[str] = frozenset()

    def ids(self) -> frozenset[str]:
        """Their ids now.

        Raises:
            UnreadableNotesError: a file of notes cannot be read.
        """
        try:
            stamps = stamps_of(self._folder.glob("*.jsonl"))
            if stamps != self._stamps:
                self._ids = frozenset(one for path in stamps for one in _noted(path))
                self._stamps = stamps
        except (OSError, StoreError) as error:
            raise UnreadableNotesError(
                f"the notes of {self._folder} cannot be read, so that it is not known what must "
                f"stay: {error}"
            ) from error
        return self._ids


def _noted(path: Path) -> set[str]:
    noted: dict[str, str] = {}
    for record in read_jsonl(path, _leave_to_the_viewer):
        if record.get("deleted"):
            noted.pop(str(record.get("id")), None)
        else:
            noted[str(record.get("id"))] = str(record.get("trajectory"))
    return set(noted.values())


def _leave_to_the_viewer(error: StoreError) -> None:
    """A line that is no JSON is no note; the viewer names it."""
    if isinstance(error.__cause__, OSError):
        raise error
