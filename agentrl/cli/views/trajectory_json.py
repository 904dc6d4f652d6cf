"""Trajectory JSON: a whole stored trajectory as JSON, with ids and logprobs of every segment."""

from __future__ import annotations

from typing import Any

from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.store.annotations.annotation import merged
from agentrl.store.json_text import from_json
from agentrl.store.trajectories.codec import SegmentReader, fields_of
from agentrl.types import Segment, SegmentKind
from agentrl.viewer.runs.stored_row import JSON_COLUMNS


def trajectory_json(run: RunDirectory, trajectory_id: str) -> dict[str, Any]:
    """The stored row with its JSON columns unfolded, every segment with its token ids and logprobs,
    and annotations.
    """
    reader = TrajectoryReader(run)
    columns, arrays = reader.row(trajectory_id)
    row = {**columns, **{name: from_json(columns[name]) for name in JSON_COLUMNS}}
    tokens = SegmentReader(arrays)
    for turn in row["turns"]:
        for part in ("context", "completion"):
            turn[part] = [_segment(tokens.segment(layout)) for layout in turn[part]]
    learned = merged(reader.learned(trajectory_id, row["recorded_at"]), trajectory_id)
    by_token = {name: array.tolist() for name, array in learned.arrays.items()}
    return {**row, "annotation": {"values": dict(learned.values), "arrays": by_token}}


def _segment(segment: Segment) -> dict[str, Any]:
    media = {"media": [fields_of(span) for span in segment.media]} if segment.media else {}
    return {
        "kind": SegmentKind(segment.kind).name.lower(),
        "policy_version": segment.policy_version,
        "token_ids": segment.token_ids.tolist(),
        "logprobs": None if segment.logprobs is None else segment.logprobs.tolist(),
    } | media
