"""Recorded run: a finished run in memory, to be changed and written again."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.store import (
    Annotation,
    AnnotationColumn,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
)
from agentrl.store.json_text import to_json
from agentrl.store.jsonl import read_jsonl
from agentrl.types import Segment, SegmentKind, Trajectory, Turn
from agentrl.types.segment import ALTERNATIVE_IDS, ALTERNATIVE_LOGPROBS

STAGE = "rl"
_TEXTS = ("config.resolved.yaml", "ledger.jsonl", "summary.json", "left_out.json")
_FILL = {
    "loss_weight": 0.0,
    "advantages": 0.0,
    "token_loss": 0.0,
    "clipped": 0,
    "loss_reason": 1,
}
"""What an annotation says of a token that no step trained; others are NaN."""
_ABSENT = {ALTERNATIVE_IDS: -1, ALTERNATIVE_LOGPROBS: -np.inf}
"""What stands beside a token that no engine sampled."""

Ids = list[int]


@dataclass(eq=False)
class RecordedRun:
    """A run's records.

    Args:
        record: ``run.json``.
        texts: other files by name, without paths of this machine.
        metrics, events: rows.
        columns: of the annotations.
        steps: the step of each trajectory, by id.
        trajectories, annotations: by id.
        blobs: by hash.
    """

    record: dict[str, Any]
    texts: dict[str, str]
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]
    columns: list[AnnotationColumn]
    steps: dict[str, int]
    trajectories: dict[str, Trajectory]
    annotations: dict[str, list[Annotation]]
    blobs: dict[str, bytes]

    @classmethod
    def read(cls, run: RunDirectory, root: Path) -> RecordedRun:
        """All of a run but its weights and logs; ``root`` is shown as the folder ``.``."""
        paths = {str(run.root): "run", str(root): "."}
        record = _without_paths(run.read_record(), paths)
        record["host"] = {**record["host"], "name": "demo", "system": platform.system()}
        reader = TrajectoryReader(run)
        summaries = reader.summaries()
        stored = list(reader.get_many([summary.id for summary in summaries]))
        named = [name for name in _TEXTS if (run.root / name).is_file()]
        used = {
            blob.sha256 for one in stored for blob in one.trajectory.blobs() if blob.sha256
        } | {sha for files in record["tokenizers"].values() for sha in files.values()}
        return cls(
            record=record,
            texts={name: _without(run.root / name, paths) for name in named},
            # the warm-up's steps have the same numbers and no trajectories
            metrics=[row for row in read_jsonl(run.metrics_path) if row["stage"] == STAGE],
            events=_without_paths(list(read_jsonl(run.events_path)), paths),
            columns=list(reader.columns().values()),
            steps={one.summary.id: one.summary.step for one in stored},
            trajectories={one.summary.id: one.trajectory for one in stored},
            annotations={one.summary.id: list(one.annotations) for one in stored},
            blobs={sha256: run.read_blob(sha256) for sha256 in sorted(used)},
        )

    def write(self, folder: Path) -> None:
        """The run, in a new folder, sealed."""
        run = RunDirectory.create(folder, self.record)
        for name, text in self.texts.items():
            (run.root / name).write_text(text, encoding="utf-8")
        for path, rows in (
            (run.metrics_path, self.metrics),
            (run.events_path, self.events),
        ):
            path.write_text("".join(f"{to_json(row)}\n" for row in rows), encoding="utf-8")
        for data in self.blobs.values():
            run.write_blob(data)
        with TrajectoryWriter(run) as writer:
            writer.declare(self.columns)
            for step in sorted(set(self.steps.values())):
                for trajectory_id in [i for i, own in self.steps.items() if own == step]:
                    writer.write(self.trajectories[trajectory_id], step)
                    for annotation in self.annotations[trajectory_id]:
                        writer.annotate(annotation)
                writer.seal(step)

    # what faults change

    def trained(self, step: int) -> list[str]:
        """Ids of what a step trained, in order."""
        return [
            trajectory_id
            for trajectory_id, own in self.annotations.items()
            if any(one.step == step and one.arrays for one in own)
        ]

    def played(self, step: int) -> list[str]:
        """Ids of training's trajectories that finished in a step, in order."""
        return [
            trajectory_id
            for trajectory_id, own in self.steps.items()
            if own == step and self.trajectories[trajectory_id].purpose == "train"
        ]

    def row(self, step: int) -> dict[str, Any]:
        """The metrics of a step."""
        return next(
            row for row in self.metrics if row["stage"] == STAGE and row["step"] == step
        )

    def num_trained(self, step: int) -> int:
        """Tokens in the loss of a step."""
        return sum(
            int(np.count_nonzero(one.arrays["loss_reason"] == 0))
            for trajectory_id in self.trained(step)
            for one in self.annotations[trajectory_id]
            if one.step == step
        )

    def change_turn(self, trajectory_id: str, turn: int, **changes: Any) -> None:
        """Replaces fields of a turn."""
        trajectory = self.trajectories[trajectory_id]
        turns = list(trajectory.turns)
        turns[turn] = replace(turns[turn], **changes)
        self.trajectories[trajectory_id] = replace(trajectory, turns=tuple(turns))

    def annotate(self, trajectory_id: str, name: str, token: int, value: float) -> float:
        """Sets one entry of a column in the newest annotation; what it was."""
        own = self.annotations[trajectory_id]
        array = np.array(own[-1].arrays[name])
        before = float(array[token])
        array[token] = value
        own[-1] = replace(own[-1], arrays={**own[-1].arrays, name: array})
        return before

    def splice(
        self, trajectory_id: str, turn: int, place: int, remove: int, insert: Ids
    ) -> None:
        """Replaces tokens of a turn's completion of one segment; no step trained the new ones.

        Args:
            trajectory_id: whose.
            turn: its index.
            place: of the first one in the completion.
            remove: how many go.
            insert: the ids that come.
        """
        trajectory = self.trajectories[trajectory_id]
        (segment,) = trajectory.turns[turn].completion
        assert segment.logprobs is not None
        spliced = replace(
            segment,
            token_ids=_spliced(
                segment.token_ids, place, remove, np.array(insert, np.int32)
            ),
            logprobs=_spliced(
                segment.logprobs, place, remove, np.full(len(insert), -0.25, np.float32)
            ),
            side={
                name: _spliced(
                    array,
                    place,
                    remove,
                    np.full((len(insert), *array.shape[1:]), _ABSENT[name], array.dtype),
                )
                for name, array in segment.side.items()
            },
        )
        start = sum(_num_sampled(one) for one in trajectory.turns[:turn]) + place
        self.change_turn(trajectory_id, turn, completion=(spliced,))
        self.annotations[trajectory_id] = [
            replace(
                one, arrays=self._spliced_arrays(one.arrays, start, remove, len(insert))
            )
            for one in self.annotations[trajectory_id]
        ]

    def _spliced_arrays(
        self, arrays: Mapping[str, npt.NDArray[Any]], start: int, remove: int, count: int
    ) -> dict[str, npt.NDArray[Any]]:
        tokens = {column.name for column in self.columns if column.level == "token"}
        return {
            name: _spliced(
                array, start, remove, np.full(count, _FILL.get(name, np.nan), array.dtype)
            )
            if name in tokens
            else array
            for name, array in arrays.items()
        }


def _num_sampled(turn: Turn) -> int:
    return sum(len(one) for one in turn.completion if one.kind is SegmentKind.POLICY)


def _spliced(
    array: npt.NDArray[Any], place: int, remove: int, insert: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    return np.concatenate([array[:place], insert, array[place + remove :]])


def with_observation(
    segments: tuple[Segment, ...], ids: npt.NDArray[np.int32]
) -> tuple[Segment, ...]:
    """A turn's context whose one OBSERVATION segment has other ids."""
    return tuple(
        replace(one, token_ids=ids) if one.kind is SegmentKind.OBSERVATION else one
        for one in segments
    )


def _without(path: Path, paths: Mapping[str, str]) -> str:
    text = path.read_text(encoding="utf-8")
    for found, shown in paths.items():
        text = text.replace(found, shown)
    return text


def _without_paths(value: Any, paths: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for found, shown in paths.items():
            value = value.replace(found, shown)
        return value
    if isinstance(value, list):
        return [_without_paths(item, paths) for item in value]
    if isinstance(value, dict):
        return {key: _without_paths(item, paths) for key, item in value.items()}
    return value
