"""Trajectory reader: the trajectories of a run, sealed and live, also while it is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store.json_text import from_json
from agentrl.store.run_directory import RunDirectory
from agentrl.store.trajectories.annotations import Annotation, AnnotationIndex
from agentrl.store.trajectories.codec import Row, decode_trajectory
from agentrl.store.trajectories.live import read_frame, read_framed
from agentrl.store.trajectories.shard import SUMMARY_COLUMNS, read_shard_row, read_summaries
from agentrl.store.trajectories.token_arrays import TokenArrays
from agentrl.types import Purpose, StatusKind, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """What a list shows of a trajectory; the fields are ``shard.SUMMARY_COLUMNS``."""

    id: str
    draw: int
    sibling: int
    attempt: int
    label: str
    purpose: Purpose
    step: int
    task_id: str
    data_source: str
    status: StatusKind
    status_reason: str
    reward: float | None
    rewards: Mapping[str, float]
    num_turns: int
    num_policy_tokens: int
    num_tokens: int
    policy_version_min: int | None
    policy_version_max: int | None
    recorded_at: float


@dataclass(frozen=True, slots=True, eq=False)
class StoredTrajectory:
    """A trajectory, its summary, and what was learned of it later."""

    summary: TrajectorySummary
    trajectory: Trajectory
    annotation: Annotation


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    index: int
    summary: TrajectorySummary


class TrajectoryReader:
    """Reads a run's trajectories. Of several records of one id the newest counts.

    Each call looks at the files again; a sealed shard is listed once, since it never changes. What
    cannot be read is named, once, and passed over. Used by one thread.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.damage: list[str] = []
        """What was passed over, and why."""
        self._run = run
        self._listed: set[Path] = set()
        """The shards whose rows are in ``_sealed``, or were passed over."""
        self._sealed: dict[str, _Place] = {}
        self._annotations = AnnotationIndex(run.annotations_folder, self._pass_over)

    def summaries(
        self,
        *,
        step: int | None = None,
        label: str | None = None,
        status: StatusKind | None = None,
        task_id: str | None = None,
        purpose: Purpose | None = None,
    ) -> list[TrajectorySummary]:
        """The trajectories that fit every filter, by step, label, draw, sibling and attempt."""
        fitting = [
            entry
            for entry in (place.summary for place in self._newest().values())
            if step in (None, entry.step)
            and label in (None, entry.label)
            and status in (None, entry.status)
            and task_id in (None, entry.task_id)
            and purpose in (None, entry.purpose)
        ]
        return sorted(fitting, key=attrgetter("step", "label", "draw", "sibling", "attempt"))

    def get(self, trajectory_id: str) -> StoredTrajectory:
        """One trajectory whole, with its annotations.

        Raises:
            StoreError: the run has none of this id, or its file is damaged.
        """
        return next(self.get_many([trajectory_id]))

    def get_many(self, trajectory_ids: Iterable[str]) -> Iterator[StoredTrajectory]:
        """Trajectories whole, with their annotations, in the order asked for; the files are listed
        once.

        Raises:
            StoreError: the run has none of an id, or its file is damaged.
        """
        places = self._newest()
        for trajectory_id in trajectory_ids:
            place = self._place(places, trajectory_id)
            try:
                row, arrays = _read(place)
            except StoreError:
                if place.path.exists():
                    raise
                places = self._newest()  # it was live, and has been sealed since
                place = self._place(places, trajectory_id)
                row, arrays = _read(place)
            annotation = self._annotations.get(trajectory_id, since=place.summary.recorded_at)
            yield StoredTrajectory(place.summary, decode_trajectory(row, arrays), annotation)

    def _place(self, places: Mapping[str, _Place], trajectory_id: str) -> _Place:
        if trajectory_id not in places:
            raise StoreError(
                f"{self._run.root} has no trajectory {trajectory_id!r}; `agentrl ls` lists its own"
            )
        return places[trajectory_id]

    def _newest(self) -> dict[str, _Place]:
        # live before sealed: what is sealed meanwhile is then seen twice, never missed
        live = [
            place
            for path in self._run.live_folder.glob("step=*/*.jsonl")
            for place in _places(path, read_framed(path, self._pass_over))
        ]
        for path in self._run.sealed_folder.glob("step=*/*.parquet"):
            if path not in self._listed:
                self._listed.add(path)
                try:
                    _keep_newest(self._sealed, _places(path, read_summaries(path)))
                except StoreError as error:
                    self._pass_over(error)
        newest = dict(self._sealed)
        _keep_newest(newest, live)
        return newest

    def _pass_over(self, error: StoreError) -> None:
        if str(error) not in self.damage:
            self.damage.append(str(error))
            told = {"event": "damaged_part", "part": str(error)}
            logger.warning("%s; it is passed over", error, extra=told)


def _places(path: Path, rows: Iterable[Row]) -> list[_Place]:
    places = []
    for index, row in enumerate(rows):
        fields = {name: row[name] for name in SUMMARY_COLUMNS}
        fields["rewards"] = from_json(fields["rewards"])
        places.append(_Place(path, index, TrajectorySummary(**fields)))
    return places


def _keep_newest(known: dict[str, _Place], places: Iterable[_Place]) -> None:
    for place in places:
        other = known.get(place.summary.id)
        if other is None or place.summary.recorded_at > other.summary.recorded_at:
            known[place.summary.id] = place


def _read(place: _Place) -> tuple[Row, TokenArrays]:
    if place.path.suffix == ".parquet":
        return read_shard_row(place.path, place.index)
    rows = read_framed(place.path, lambda told_before: None)
    row = next(islice(rows, place.index, None), None)
    if row is None:
        raise StoreError(f"{place.path} has no line {place.index + 1}")
    return row, TokenArrays.unpack(read_frame(place.path, row["frame"]), row["num_tokens"])
