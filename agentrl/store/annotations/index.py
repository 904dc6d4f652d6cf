"""Annotation index: finds the annotations of a trajectory and of a step, also while they are
written.

- A sealed shard is listed once: its ids and their rows. Live files are read on from the last look.
- What is sealed during a look is found twice and counts once.
- What cannot be read is named and passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.annotations.annotation import (
    Annotation,
    AnnotationColumn,
    StoredAnnotation,
    decode_annotation,
)
from agentrl.store.annotations.files import read_declared, read_ids, read_row, read_rows
from agentrl.store.annotations.rollbacks import Rollbacks
from agentrl.store.jsonl import Damage, JsonFollower, Record
from agentrl.store.run_directory import RunDirectory, step_name
from agentrl.store.shard_folders import RecentRows, ShardFolders
from agentrl.store.step_files import frame_of, read_frame
from agentrl.types.user_code.values import shown

_LOOKS = 3


class AnnotationIndex:
    """The annotations of a run. Used by one thread.

    Args:
        run: whose.
        on_damage: is told of what cannot be read.
    """

    def __init__(self, run: RunDirectory, on_damage: Damage) -> None:
        self._run = run
        self._on_damage = on_damage
        self._logs: dict[Path, _AppendedLog] = {}
        self._folders = ShardFolders(run.sealed_annotations_folder)
        self._shards: list[Path | None] = []
        """Those that were listed; None in place of one that has gone."""
        self._numbers: dict[Path, int] = {}
        self._rows: dict[str, list[tuple[int, int]]] = {}
        """Of each trajectory the shards, by their number in ``_shards``, and the rows in them."""
        self._recent = RecentRows(read_row)

    def get(self, trajectory_id: str, *, since: float = 0.0) -> tuple[Annotation, ...]:
        """The annotations of a trajectory, oldest first.

        Args:
            trajectory_id: which.
            since: seconds since the epoch at which its newest record was written. What was written
                earlier, before the run was last resumed, is about an older record of the id.
        """
        live = [
            one
            for log in self._appended()
            for record in log.by_id.get(trajectory_id, ())
            if (one := self._decoded(log.path, record)) is not None
        ]
        # after the live files: what was sealed meanwhile is then seen twice, never missed
        found = [*self._sealed_rows(trajectory_id), *live]
        return tuple(self._standing(found, lambda _: since))

    def of_step(
        self,
        step: int | None,
        learner: str | None,
        stage: str | None,
        since: Callable[[str], float],
    ) -> Iterator[Annotation]:
        """The annotations of one step, or of every step, one in memory at a time.

        Args:
            step: which; None for all.
            learner: of which; None for all.
            stage: of which; None for all.
            since: as for ``get``, by trajectory.
        """
        logs = [log for log in self._appended() if step in (None, log.step)]
        pattern = "step=*" if step is None else step_name(step)
        # before the shards, which may be made of them meanwhile
        early = self._all_of(logs)
        shards = sorted(self._run.sealed_annotations_folder.glob(f"{pattern}/*.parquet"))
        sealed = (one for path in shards for one in self._readable(path))
        for found in self._standing(chain(sealed, early), since):
            own = (found.step, found.learner, found.values.get("stage", ""))
            asked = (step, learner, stage)
            if all(ask in (None, value) for ask, value in zip(asked, own, strict=True)):
                yield found

    def live(self) -> list[StoredAnnotation]:
        """Those that lie in no shard, whatever became of them since."""
        return self._all_of(self._appended())

    def columns(self) -> dict[str, AnnotationColumn]:
        """The columns that the run's writers declared, by name."""
        columns: dict[str, AnnotationColumn] = {}
        for path in sorted(self._run.annotation_columns_folder.glob("*.json")):
            try:
                columns |= {one.name: one for one in read_declared(path)}
            except StoreError as error:
                self._on_damage(error)
        return columns

    def _standing(
        self, found: Iterable[StoredAnnotation], since: Callable[[str], float]
    ) -> Iterator[Annotation]:
        """Each annotation once, without those that a resume took back."""
        rollbacks = Rollbacks.readable(self._run, self._on_damage)
        seen = set()
        for one in found:
            annotation = one.annotation
            stage = str(annotation.values.get("stage", ""))
            if (
                one.key in seen
                or rollbacks.took_back(one.resumes, stage, annotation.step)
                or (
                    one.resumes < rollbacks.count
                    and one.recorded_at < since(annotation.trajectory_id)
                )
            ):
                continue
            seen.add(one.key)
            yield annotation

    def _sealed_rows(self, trajectory_id: str) -> list[StoredAnnotation]:
        for _ in range(_LOOKS):
            self._list_shards()
            found, errors = self._read_rows(trajectory_id)
            others = [one for one in found if one.annotation.trajectory_id != trajectory_id]
            if not errors and not others:
                # else a shard may have been replaced since it was listed
                break
        for error in errors:
            self._on_damage(error)
        own = [one for one in found if one.annotation.trajectory_id == trajectory_id]
        return sorted(
            own, key=lambda one: (one.resumes, one.annotation.step, one.recorded_at)
        )

    def _read_rows(
        self, trajectory_id: str
    ) -> tuple[list[StoredAnnotation], list[StoreError]]:
        found = []
        errors = []
        for shard, row in self._rows.get(trajectory_id, ()):
            path = self._shards[shard]
            if path is not None:
                try:
                    found.append(self._recent.get(path, row))
                except StoreError as error:
                    errors.append(error)
        return found, errors

    def _readable(self, path: Path) -> Iterator[StoredAnnotation]:
        try:
            yield from read_rows(path)
        except StoreError as error:
            # else store.keep left nothing of it
            if path.exists():
                self._on_damage(error)

    def _all_of(self, logs: Iterable[_AppendedLog]) -> list[StoredAnnotation]:
        return [
            one
            for log in logs
            for records in log.by_id.values()
            for record in records
            if (one := self._decoded(log.path, record)) is not None
        ]

    def _decoded(self, path: Path, record: Record) -> StoredAnnotation | None:
        """The annotation of a line; None where its frame is gone, since it is sealed by now."""
        try:
            frame = frame_of(f"a line of {path}", record)
            return decode_annotation(record, read_frame(path, frame))
        except StoreError as error:
            if path.exists():
                self._on_damage(error)
            return None

    def _appended(self) -> list[_AppendedLog]:
        """The live files, read to their ends."""
        paths = set(self._run.live_annotations_folder.glob("step=*/*.jsonl"))
        self._logs = {path: log for path, log in self._logs.items() if path in paths}
        for path in sorted(paths):
            log = self._logs.setdefault(path, _AppendedLog(path))
            log.read_on(self._on_damage)
        return list(self._logs.values())

    def _list_shards(self) -> None:
        try:
            added, gone = self._folders.look()
        except OSError as error:
            self._on_damage(StoreError(f"{self._run.sealed_annotations_folder}: {error}"))
            return
        for path in gone:
            if path in self._numbers:
                self._shards[self._numbers.pop(path)] = None
        for path in added:
            try:
                ids = read_ids(path)
            except StoreError as error:
                if path.exists():
                    self._on_damage(error)
                continue
            number = self._numbers[path] = len(self._shards)
            self._shards.append(path)
            for row, trajectory_id in enumerate(ids):
                self._rows.setdefault(trajectory_id, []).append((number, row))


class _AppendedLog:
    """A file of annotations that may grow.

    Attributes:
        path: of its lines.
        step: of its annotations.
        by_id: its records so far, by trajectory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step = int(path.parent.name.removeprefix("step="))
        self.by_id: dict[str, list[Record]] = {}
        self._follower = JsonFollower(path)

    def read_on(self, on_damage: Damage) -> None:
        """Take what was appended; a partial last line waits."""
        same, records = self._follower.look(on_damage)
        # another file of that name
        if not same:
            self.by_id = {}
        for start, record in records:
            if "id" in record:
                self.by_id.setdefault(str(record["id"]), []).append(record)
            else:
                place = f"the line at {start} of {self.path}"
                on_damage(StoreError(f"{place} names no trajectory: {shown(record, 200)}"))
