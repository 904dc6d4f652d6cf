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
from agentrl.store.retention import DropCounts, find_drop
from agentrl.store.run_directory import RunDirectory
from agentrl.store.shard_folders import ShardFolders
from agentrl.store.trajectories.codec import decode_trajectory
from agentrl.store.trajectories.columns import Row, TokenArrays
from agentrl.store.trajectories.listing import Listing, LiveListing, ShardListing, TrajectorySummary
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
class _Place:
    """Where the newest record of an id is."""

    listing: Listing
    position: int

    @property
    def recorded_at(self) -> float:
        return self.listing.recorded_at[self.position]


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
        self._newest: dict[str, _Place] = {}
        self._changed: dict[str, None] = {}
        """Ids that are new or have a newer record since ``changes``, in the order found."""
        self._annotations = AnnotationIndex(run, self._pass_over)
        self._drops = DropCounts(run, self._pass_over)

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
        found: list[TrajectorySummary] = []
        for listing in self._listings():
            fitting = listing.fitting(filters)
            found += listing.summaries([own for own in fitting if self._is_newest(listing, own)])
        order = ("step", "stage", "label", "group_index", "rollout_index", "attempt")
        return sorted(found, key=attrgetter(*order))

    def changes(self, limit: int | None = None) -> list[TrajectorySummary]:
        """The trajectories that are new, or have a newer record, since the last call; the first
        call gives all. Where nothing changed, it costs a look at the folders.

        Args:
            limit: at most so many; the next calls give the others.

        Raises:
            StoreError: the run is not there any more.
        """
        self._look()
        positions: dict[Listing, list[int]] = {}
        for trajectory_id in list(self._changed)[:limit]:
            del self._changed[trajectory_id]
            if trajectory_id in self._newest:
                place = self._newest[trajectory_id]
                positions.setdefault(place.listing, []).append(place.position)
        return [one for listing, own in positions.items() for one in listing.summaries(own)]

    def row(self, trajectory_id: str) -> tuple[Row, TokenArrays]:
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
        return self._drops.by_stage()

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
        error = NoTrajectoryError(f"{self._run.root} has no trajectory {trajectory_id!r}{why}")
        error.why = why
        return error

    def _listings(self) -> Iterator[Listing]:
        # sealed last: of two equal records, the one that stays counts
        yield from self._live.values()
        yield from self._sealed.values()

    def _is_newest(self, listing: Listing, position: int) -> bool:
        place = self._newest[listing.ids[position]]
        return place.listing is listing and place.position == position

    def _look(self) -> None:
        """Bring what is known up to date.

        Raises:
            StoreError: the run is not there any more.
        """
        if not self._run.root.is_dir():
            raise StoreError(
                f"{self._run.root} is not there any more; was it moved? open it where it is now"
            )
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        with os_refusals(f"{self._run.root} cannot be read"):
            left = [*self._look_at_live(), *self._look_at_sealed()]
        if any(
            self._is_newest(listing, position)
            for listing in left
            for position in range(len(listing.ids))
        ):
            self._count_again()

    def _look_at_live(self) -> list[Listing]:
        """Takes in what live files have; the listings that are of no more use."""
        paths = sorted(self._run.live_folder.glob("step=*/*.jsonl"))
        left: list[Listing] = [self._live.pop(path) for path in self._live.keys() - {*paths}]
        for path in paths:
            listing = self._live.get(path) or LiveListing(path, self._pass_over)
            known = len(listing.ids)
            if not listing.grow():
                left.append(listing)
                listing = LiveListing(path, self._pass_over)
                listing.grow()
                known = 0
            self._live[path] = listing
            self._take(listing, known)
        return left

    def _look_at_sealed(self) -> list[Listing]:
        """Takes in new shards; the listings of those that are gone or were replaced."""
        added, gone = self._folders.look()
        left: list[Listing] = [self._sealed.pop(path) for path in gone if path in self._sealed]
        for path in added:
            try:
                listing = ShardListing(path)
            except StoreError as error:
                if path.exists():
                    self._pass_over(error)
            else:
                self._sealed[path] = listing
                self._take(listing, 0)
        return left

    def _take(self, listing: Listing, first: int) -> None:
        """Of each id keep the newest record, from position ``first`` of a listing on."""
        for position in range(first, len(listing.ids)):
            trajectory_id = listing.ids[position]
            known = self._newest.get(trajectory_id)
            at = listing.recorded_at[position]
            # An equal time is the same record, sealed since: its place changes, and nothing is new.
            if known is None or at >= known.recorded_at:
                self._newest[trajectory_id] = _Place(listing, position)
            if known is None or at > known.recorded_at:
                self._changed[trajectory_id] = None

    def _count_again(self) -> None:
        """Finds the newest records without those whose files are gone."""
        before = self._newest
        changed = self._changed
        self._newest = {}
        self._changed = {}
        for listing in self._listings():
            self._take(listing, 0)
        other = [
            trajectory_id
            for trajectory_id, place in self._newest.items()
            if trajectory_id not in before or place.recorded_at != before[trajectory_id].recorded_at
        ]
        self._changed = {**changed, **dict.fromkeys(other)}

    def _pass_over(self, error: StoreError) -> None:
        if str(error) not in self.damage:
            self.damage.append(str(error))
            told = {"event": "damaged_part", "part": str(error)}
            logger.warning("%s; it is passed over", error, extra=told)
