"""Trajectory JSON: prints a whole stored trajectory as JSON."""

from __future__ import annotations

from typing import Any

from agentrl.store import StoredTrajectory, encode_trajectory
from agentrl.store.json_text import from_json
from agentrl.store.trajectories.turn_record import fields_of
from agentrl.types import Segment, SegmentKind

_JSON_COLUMNS = (
    *("rewards", "turns", "task", "timings", "info", "reasons"),
    *("first_state", "last_observed", "last_info"),
)


def trajectory_json(stored: StoredTrajectory) -> dict[str, Any]:
    """The stored row with its JSON columns unfolded, every segment with its token ids and logprobs,
    and annotations.
    """
    summary = stored.summary
    trajectory = stored.trajectory
    row, _ = encode_trajectory(trajectory, step=summary.step, recorded_at=summary.recorded_at)
    row |= {name: from_json(row[name]) for name in _JSON_COLUMNS}
    for record, turn in zip(row["turns"], trajectory.turns, strict=True):
        record["context"] = [_segment(segment) for segment in turn.context]
        record["completion"] = [_segment(segment) for segment in turn.completion]
    arrays = {name: array.tolist() for name, array in stored.annotation.arrays.items()}
    return {**row, "annotation": {"values": dict(stored.annotation.values), "arrays": arrays}}


def _segment(segment: Segment) -> dict[str, Any]:
    media = {"media": [fields_of(span) for span in segment.media]} if segment.media else {}
    return {
        "kind": SegmentKind(segment.kind).name.lower(),
        "policy_version": segment.policy_version,
        "token_ids": segment.token_ids.tolist(),
        "logprobs": None if segment.logprobs is None else segment.logprobs.tolist(),
    } | media
