"""Trajectory reader: the trajectories of a run, sealed and live, also while it is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.annotations.annotation import Annotation, AnnotationColumn, merged
from agentrl.store.annotations.index import AnnotationIndex
from agentrl.store.disk import os_refusals
from agentrl.store.retention import find_drop, kept_by_stage
from agentrl.store.run_directory import RunDirectory
from agentrl.store.shard_folders import ShardFolders
from agentrl.store.trajectories.codec import decode_trajectory
from agentrl.store.trajectories.columns import EncodedRow, Row, TokenArrays
from agentrl.store.trajectories.listing import (
    FileListing,
    LiveListing,
    ShardListing,
    TrajectorySummary,
)
from agentrl.types import Purpose, StatusKind, Trajectory

logger = logging.getLogger(__name__)


class NoTrajectoryError(StoreError):
    """A run has no trajectory of an id."""

    why = ""
    """The end of the message: what became of it, or where to look."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTrajectory:
    """A trajectory, its summary, and what was learned of it later."""

    summary: TrajectorySummary
    trajectory: Trajectory
    annotations: tuple[Annotation, ...] = ()
    """Oldest first."""

    @property
    def annotation(self) -> Annotation:
        """All of them as one: of each name the newest value."""
        return merged(self.annotations, self.summary.id)


@dataclass(frozen=True, slots=True, eq=False)
class _Newest:
    """Where the newest record of an id is."""

    listing: FileListing
    position: int
    recorded_at: float


class TrajectoryReader:
    """Reads a run's trajectories. Of several records of one id the newest counts.

    Each call looks at the files again: of a live file it reads what was appended, and a sealed
    shard is listed once. What cannot be read is named, once, and passed over. Used by one thread.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.damage: list[str] = []
        """What was passed over, and why."""
        self._run = run
        self._folders = ShardFolders(run.sealed_folder)
        self._sealed: dict[Path, ShardListing] = {}
        self._live: dict[Path, LiveListing] = {}
        self._newest: dict[str, _Newest] = {}
        self._is_stale = False
        self._annotations = AnnotationIndex(run, self._pass_over)

    def summaries(
        self,
        *,
        step: int | None = None,
        label: str | None = None,
        status: StatusKind | None = None,
        task_id: str | None = None,
        purpose: Purpose | None = None,
    ) -> list[TrajectorySummary]:
        """The trajectories that fit every filter, by step, stage, label, group, rollout and
        attempt.

        Raises:
            StoreError: the run is not there any more.
        """
        self._look()
        asked = {
            "step": step,
            "label": label,
            "status": status,
            "task_id": task_id,
            "purpose": purpose,
        }
        filters = {name: value for name, value in asked.items() if value is not None}
        positions: dict[FileListing, list[int]] = {}
        for place in self._newest.values():
            positions.setdefault(place.listing, []).append(place.position)
        found = [
            one
            for listing, own in positions.items()
            for one in listing.summaries(own)
            if all(getattr(one, name) == value for name, value in filters.items())
        ]
        order = ("step", "stage", "label", "group_index", "rollout_index", "attempt")
        return sorted(found, key=attrgetter(*order))

    def row(self, trajectory_id: str) -> EncodedRow:
        """One trajectory as it is stored: its columns under the names of today, and its arrays.

        Raises:
            StoreError: the run has none of this id, or its file is damaged.
        """
        self._look()
        _, row, arrays = self._read(trajectory_id)
        return row, arrays

    def get(self, trajectory_id: str) -> StoredTrajectory:
        """One trajectory whole, with its annotations.

        Raises:
            StoreError: the run has none of this id, or its file is damaged.
        """
        return next(self.get_many([trajectory_id]))

    def get_many(self, trajectory_ids: Iterable[str]) -> Iterator[StoredTrajectory]:
        """Trajectories whole, with their annotations, in the order asked for; the files are looked
        at once.

        Raises:
            StoreError: the run has none of an id, or its file is damaged.
        """
        self._look()
        for trajectory_id in trajectory_ids:
            summary, row, arrays = self._read(trajectory_id)
            found = self._annotations.get(trajectory_id, since=summary.recorded_at)
            yield StoredTrajectory(summary, decode_trajectory(row, arrays), found)

    def learned(self, trajectory_id: str, since: float = 0.0) -> tuple[Annotation, ...]:
        """The annotations of one trajectory, the oldest first; reads nothing of the trajectory.

        Args:
            trajectory_id: which.
            since: its ``recorded_at``: what was recorded earlier is about an older record.
        """
        return self._annotations.get(trajectory_id, since=since)

    def columns(self) -> dict[str, AnnotationColumn]:
        """What the run declared of its annotations, by name."""
        return self._annotations.columns()

    def annotations(
        self,
        *,
        step: int | None = None,
        learner: str | None = None,
        stage: str | None = None,
    ) -> Iterator[Annotation]:
        """The annotations of a step, without those that a resume took back; reads none of its
        trajectories.

        Args:
            step: that learned them; None for every step.
            learner: that learned them; None for every learner.
            stage: whose step it is, since each stage counts its steps from 1; None for every stage.
        """

        def recorded_at(trajectory_id: str) -> float:
            # asked of a run that was resumed alone
            if not self._newest:
                self._look()
            place = self._newest.get(trajectory_id)
            return 0.0 if place is None else place.recorded_at

        return self._annotations.of_step(step, learner, stage, recorded_at)

    def kept_by_stage(self) -> dict[str, dict[int, tuple[int, int]]]:
        """How many trajectories ``store.keep`` left of each stage's steps, and of how many; steps
        that are whole are left out.
        """
        return kept_by_stage(self._run, self._pass_over)

    def _read(self, trajectory_id: str) -> tuple[TrajectorySummary, Row, TokenArrays]:
        for is_last in (False, True):
            if trajectory_id not in self._newest:
                raise self._missing(trajectory_id)
            place = self._newest[trajectory_id]
            path = place.listing.path
            try:
                row, arrays = place.listing.read(place.position)
            except StoreError:
                if is_last:
                    raise
            else:
                if row["id"] == trajectory_id:
                    (summary,) = place.listing.summaries([place.position])
                    return summary, row, arrays
            # it was live and has been sealed since, or its shard was rewritten
            self._look()
        raise StoreError(f"{path} is rewritten all the time; read {trajectory_id!r} again")

    def _missing(self, trajectory_id: str) -> NoTrajectoryError:
        why = "; `agentrl ls` lists its own"
        if (drop := find_drop(self._run, trajectory_id)) is not None:
            why = (
                f" any more: it was dropped by store.keep, which left {drop.kept} of {drop.of} "
                f"trajectories of {drop.shard}"
            )
        error = NoTrajectoryError(
            f"{self._run.root} has no trajectory {trajectory_id!r}{why}"
        )
        error.why = why
        return error

    def _look(self) -> None:
        """Bring what is known up to date.

        Raises:
            StoreError: the run is not there any more.
        """
        if not self._run.root.is_dir():
            raise StoreError(
                f"{self._run.root} is not there any more; was it moved? open it where it is now"
            )
        changed = self._is_stale
        # until all is known: a look that fails has taken in a part
        self._is_stale = True
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        with os_refusals(f"{self._run.root} cannot be read"):
            changed = self._look_at_live() or changed
            changed = self._look_at_sealed() or changed
        if changed:
            self._find_newest()
        self._is_stale = False

    def _look_at_live(self) -> bool:
        """Takes in what live files have; whether anything changed."""
        paths = sorted(self._run.live_folder.glob("step=*/*.jsonl"))
        gone = self._live.keys() - {*paths}
        for path in gone:
            del self._live[path]
        for path in paths:
            self._live.setdefault(path, LiveListing(path, self._pass_over))
        grown = [self._live[path].grow() for path in paths]
        return bool(gone) or any(grown)

    def _look_at_sealed(self) -> bool:
        """Takes in new shards, without those that are gone or were replaced; whether anything
        changed.
        """
        added, gone = self._folders.look()
        for path in gone:
            self._sealed.pop(path, None)
        for path in added:
            try:
                self._sealed[path] = ShardListing(path)
            except StoreError as error:
                if path.exists():
                    self._pass_over(error)
        return bool(added or gone)

    def _find_newest(self) -> None:
        self._newest = {}
        # sealed last: of two equal records, the one that stays counts
        listings: list[FileListing] = [*self._live.values(), *self._sealed.values()]
        for listing in listings:
            for position, (trajectory_id, at) in enumerate(listing.places()):
                known = self._newest.get(trajectory_id)
                if known is None or at >= known.recorded_at:
                    self._newest[trajectory_id] = _Newest(listing, position, at)

    def _pass_over(self, error: StoreError) -> None:
        if str(error) not in self.damage:
            self.damage.append(str(error))
            told = {"event": "damaged_part", "part": str(error)}
            logger.warning("%s; it is passed over", error, extra=told)
