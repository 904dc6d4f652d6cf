"""Annotations: append-only records about trajectories that are stored already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import StoreError
from agentrl.store.jsonl import parse_line
from agentrl.store.trajectories.live import read_frame


@dataclass(frozen=True, slots=True, eq=False)
class Annotation:
    """What one step learned of one trajectory.

    Args:
        trajectory_id: which.
        values: JSON by name, such as ``trained_step``, ``advantage``, ``clip_frac``.
        arrays: by name, such as ``old_logprobs`` (nats) and ``advantages``:
            ``[num_policy_tokens]``, an entry for each POLICY token in turn order.
    """

    trajectory_id: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)


def encode_annotation(annotation: Annotation, recorded_at: float) -> tuple[dict[str, Any], bytes]:
    """The record of an annotation, and the bytes of its arrays.

    Raises:
        StoreError: an array is not one-dimensional, or holds no numbers.
    """
    for name, array in annotation.arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise StoreError(
                f"annotation {name!r} of trajectory {annotation.trajectory_id!r} must be a "
                f"one-dimensional array of numbers, got dtype {array.dtype} and shape {array.shape}"
            )
    record = {
        "id": annotation.trajectory_id,
        "recorded_at": recorded_at,
        "values": annotation.values,
        "arrays": [
            [name, array.dtype.str, array.size] for name, array in annotation.arrays.items()
        ],
    }
    return record, b"".join(array.tobytes() for array in annotation.arrays.values())


class AnnotationIndex:
    """The annotations of a run, by trajectory; reads what was appended since the last look.

    Args:
        folder: ``RunDirectory.annotations_folder``.
        on_damage: is told of a line that cannot be read, which is then passed over.
    """

    def __init__(self, folder: Path, on_damage: Callable[[StoreError], None]) -> None:
        self._folder = folder
        self._on_damage = on_damage
        self._records: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        self._seen: dict[Path, int] = {}

    def get(self, trajectory_id: str, *, since: float = 0.0) -> Annotation:
        """All that is known of a trajectory, as one annotation; of two values of a name the newest
        counts.

        Args:
            trajectory_id: which.
            since: seconds since the epoch; what was recorded earlier is about an older record of
                the same id, which a rolled-back attempt left.

        Raises:
            StoreError: a record cannot be read.
        """
        self._refresh()
        found = [
            pair for pair in self._records.get(trajectory_id, ()) if pair[1]["recorded_at"] >= since
        ]
        values: dict[str, Any] = {}
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for path, record in sorted(found, key=lambda pair: float(pair[1]["recorded_at"])):
            values.update(record["values"])
            data = read_frame(path, record["frame"])
            offset = 0
            for name, dtype, size in record["arrays"]:
                arrays[name] = np.frombuffer(data, dtype, size, offset)
                offset += arrays[name].nbytes
        return Annotation(trajectory_id, values, arrays)

    def _refresh(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._seen.get(path, 0))
                *lines, partial = file.read().split(b"\n")
                for line in lines:
                    try:
                        record = parse_line(f"a line of {path}", line)
                        of_id = self._records.setdefault(record["id"], [])
                    except StoreError as error:
                        self._on_damage(error)
                    else:
                        of_id.append((path, record))
                self._seen[path] = file.tell() - len(partial)
