"""Retention: drops what ``store.keep`` does not keep, once a step is old.

- A shard that shrinks is replaced in one step, and what it loses is written down before. A death at
  any moment leaves it whole or shrunk; the next process looks at every old step again.
- A trajectory is dropped with all its records, and then its annotations.
- A shard that cannot be read, and all of them while notes cannot be, stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.store.annotations import files as annotation_files
from agentrl.store.retention import (
    KEEP_COLUMNS,
    DropLog,
    DropRecord,
    NotedTrajectories,
    UnreadableNotesError,
    fits,
)
from agentrl.store.run_directory import RunDirectory, step_name
from agentrl.store.shard import DamagedShardError, ShardLayout, shrink_shard
from agentrl.store.store_spec import KeepSpec
from agentrl.store.trajectories import files as trajectory_files

logger = logging.getLogger(__name__)

_REMEMBERED = 200_000
"""Trajectories whose fate is known when a later record or annotation of theirs comes."""


class _Fate(NamedTuple):
    recorded_at: float
    stays: bool


class Retention:
    """Applies ``store.keep`` to the sealed files of one writer. Used by one thread.

    Args:
        run: whose files.
        writer: the name of the files; those of other writers stay.
        keep: the rules.

    Raises:
        StoreError: the log of earlier drops cannot be read.
    """

    def __init__(self, run: RunDirectory, writer: str, keep: KeepSpec) -> None:
        self._run = run
        self._writer = writer
        self._keep = keep
        self._noted = NotedTrajectories(run)
        self._log = DropLog(run, writer)
        self._through: dict[str, int] = {}
        """Of each stage the last step that was looked at."""
        self._fates: dict[str, _Fate] = {}
        """By id, of the newest record that was looked at; the last remembered one at the end."""
        if keep.drops:
            for record in self._log.records():
                self._remember((one, record.newest, False) for one in record.dropped)

    def step_ended(self, stage: str, step: int) -> None:
        """Drop what is not kept of the steps of a stage that are old now.

        Raises:
            StoreError: the log or a shard cannot be written.
        """
        if not self._keep.drops:
            return
        last = step - (self._keep.last_steps or 0)
        for old in self._steps(self._through.get(stage), last):
            for path in self._shards(self._run.sealed_folder, old):
                self._passing_over_damage(path, partial(self._shrink, stage=stage))
            for path in self._shards(self._run.sealed_annotations_folder, old):
                self._passing_over_damage(path, self._shrink_annotations)
        self._through[stage] = max(last, self._through.get(stage, last))

    def close(self) -> None:
        """Close the log; a second call does nothing."""
        self._log.close()

    def _steps(self, through: int | None, last: int) -> Sequence[int]:
        if through is not None:
            # the first of them may have got another shard
            return range(through, last + 1)
        roots = (self._run.sealed_folder, self._run.sealed_annotations_folder)
        names = {folder.name for root in roots for folder in root.glob("step=*")}
        numbers = sorted(int(name.removeprefix("step=")) for name in names)
        return [number for number in numbers if number <= last]

    def _shards(self, root: Path, step: int) -> list[Path]:
        found = sorted((root / step_name(step)).glob(f"{self._writer}-*.parquet"))
        return [path for path in found if path.stem.rpartition("-")[0] == self._writer]

    def _passing_over_damage(self, shard: Path, shrink: Callable[[Path], None]) -> None:
        try:
            shrink(shard)
        except (DamagedShardError, UnreadableNotesError) as error:
            told = {"event": "damaged_part", "part": str(error)}
            logger.warning("%s; store.keep leaves %s as it is", error, shard, extra=told)

    def _shrink(self, shard: Path, stage: str) -> None:
        rows = trajectory_files.read_columns(shard, KEEP_COLUMNS).to_pylist()
        ids = [row["id"] for row in rows]
        fitting = [row["stage"] != stage or self._fits(row) for row in rows]
        own = [row for row in rows if row["stage"] == stage]

        def tell(keeps: Sequence[bool]) -> None:
            dropped = tuple(one for one, stays in zip(ids, keeps, strict=True) if not stays)
            record = DropRecord(
                shard=str(shard.relative_to(self._run.root)),
                stage=stage,
                step=int(shard.parent.name.removeprefix("step=")),
                of=len(own),
                kept=len(own) - len(dropped),
                newest=max(row["recorded_at"] for row in own),
                dropped=dropped,
            )
            self._log.append(record)

        keeps = self._rewrite(shard, ids, fitting, trajectory_files.LAYOUT, tell)
        self._remember(
            (row["id"], row["recorded_at"], stays)
            for row, stays in zip(rows, keeps, strict=True)
            if row["stage"] == stage
        )

    def _shrink_annotations(self, shard: Path) -> None:
        ids = annotation_files.read_ids(shard)
        dropped = [one in self._fates and not self._fates[one].stays for one in ids]
        self._rewrite(
            shard,
            ids,
            [not one for one in dropped],
            annotation_files.LAYOUT,
            lambda _: None,
        )

    def _rewrite(
        self,
        shard: Path,
        ids: Sequence[str],
        fitting: Sequence[bool],
        layout: ShardLayout,
        tell: Callable[[Sequence[bool]], None],
    ) -> Sequence[bool]:
        """Takes out of a shard what neither fits nor has a note; which of its rows stay.

        A note that is written meanwhile counts: the notes are looked at again right before the
        shard is replaced.
        """
        while True:
            noted = self._noted.ids()
            keeps = [fit or one in noted for one, fit in zip(ids, fitting, strict=True)]
            if all(keeps):
                return keeps
            tell(keeps)
            if shrink_shard(shard, keeps, layout, lambda: self._noted.ids() is noted):  # noqa: B023
                return keeps

    def _fits(self, row: Mapping[str, Any]) -> bool:
        """Of several records of one id, as a resumed run has them, the newest counts: where an
        older one stays, so do those after it, and one that is older than another is of no use.
        """
        known = self._fates.get(row["id"])
        if known is not None and known.recorded_at > row["recorded_at"]:
            return False
        return fits(self._keep, row) or (known is not None and known.stays)

    def _remember(self, fates: Iterable[tuple[str, float, bool]]) -> None:
        for trajectory_id, recorded_at, stays in fates:
            known = self._fates.pop(trajectory_id, None)
            own = _Fate(recorded_at, stays)
            newer = known is not None and known.recorded_at > recorded_at
            self._fates[trajectory_id] = known if known is not None and newer else own
        while len(self._fates) > _REMEMBERED:
            del self._fates[next(iter(self._fates))]
