"""Trajectory codec: a trajectory as a row and arrays, its turns as JSON, and back.

The row is the one stored form. A live line has its short columns, and a zstd frame its texts and
arrays; a sealed shard holds the same row in Parquet columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from agentrl.errors import StoreError
from agentrl.guards.printable import encodable
from agentrl.store.json_text import from_json, to_json
from agentrl.store.trajectories.columns import EncodedRow, Row, TokenArrays, token_arrays
from agentrl.types import (
    CallProblem,
    CallRecord,
    MediaSpan,
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    content_text,
)
from agentrl.types.arrays import AnyArray

_TURN_FIELDS = Turn.__slots__
"""What a record may hold for a turn; what else stands in it, such as ``sequence``, is for readers
of the file."""
_LEFT_OUT_WHERE_EMPTY = ("observed_info", "state", "files", "offered_tools")


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots, as they are."""
    return {name: getattr(value, name) for name in value.__slots__}


def sequence_indices(turns: Sequence[Turn]) -> list[int]:
    """The token sequence of each turn, counted from 0.

    A turn goes on with its parent's sequence where it is the parent's first child; any other turn,
    and one without a parent, begins a sequence.
    """
    sequences: list[int] = []
    ends: dict[int, int] = {}
    """The sequence that each turn is the last of, by the turn's index."""
    begun = 0
    for turn in turns:
        sequence = None if turn.parent is None else ends.pop(turn.parent, None)
        if sequence is None:
            sequence = begun
            begun += 1
        ends[turn.index] = sequence
        sequences.append(sequence)
    return sequences


def encode_turn(turn: Turn, sequence: int) -> dict[str, Any]:
    """A turn as JSON values: its fields under their names, each segment by its length, and the
    token sequence that it belongs to.
    """
    calls = [
        {name: part and fields_of(part) for name, part in fields_of(call).items()}
        for call in turn.calls
    ]
    own = fields_of(turn)
    for name in _LEFT_OUT_WHERE_EMPTY:
        if not own[name]:
            del own[name]
    return {
        **own,
        "sequence": sequence,
        "calls": calls,
        "sampling": turn.sampling and fields_of(turn.sampling),
        "context": [_encode_segment(segment) for segment in turn.context],
        "completion": [_encode_segment(segment) for segment in turn.completion],
    }


def _encode_segment(segment: Segment) -> dict[str, Any]:
    layout: dict[str, Any] = {"kind": int(segment.kind), "num_tokens": len(segment)}
    if segment.policy_version is not None:
        layout["policy_version"] = segment.policy_version
    if segment.media:
        layout["media"] = [fields_of(span) for span in segment.media]
    if segment.side:
        layout["side"] = {
            name: _array_layout(name, array) for name, array in segment.side.items()
        }
    return layout


def _array_layout(name: str, array: AnyArray) -> dict[str, Any]:
    if array.dtype.kind not in "biufcSU":
        raise StoreError(
            f"side array {name!r} must hold numbers or fixed strings, got dtype {array.dtype}"
        )
    return {"dtype": array.dtype.str, "shape": array.shape}


class SegmentReader:
    """Hands out the arrays' next tokens, segment by segment."""

    def __init__(self, arrays: TokenArrays) -> None:
        self._arrays = arrays
        self._token = 0
        self._side = 0

    def segment(self, layout: Mapping[str, Any]) -> Segment:
        start = self._token
        end = self._token + layout["num_tokens"]
        kind = SegmentKind(layout["kind"])
        if end > self._arrays.token_ids.size:
            raise ValueError(
                f"its segments have more than its {self._arrays.token_ids.size} tokens"
            )
        self._token = end
        # slices are copied, so that a segment does not keep a whole shard alive
        return Segment(
            kind=kind,
            token_ids=self._arrays.token_ids[start:end].copy(),
            logprobs=self._arrays.logprobs[start:end].copy()
            if kind is SegmentKind.POLICY
            else None,
            policy_version=layout.get("policy_version"),
            media=tuple(MediaSpan(**span) for span in layout.get("media", ())),
            side={
                name: self._side_array(array)
                for name, array in layout.get("side", {}).items()
            },
        )

    def _side_array(self, layout: Mapping[str, Any]) -> AnyArray:
        dtype = np.dtype(layout["dtype"])
        shape = tuple(layout["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = (
            np.frombuffer(self._arrays.side, dtype, count, self._side)
            if count
            else np.zeros(0, dtype)
        )
        self._side += count * dtype.itemsize
        return cast(AnyArray, array.reshape(shape).copy())

    def assert_used(self) -> None:
        used = (self._token, self._side)
        given = (self._arrays.token_ids.size, len(self._arrays.side))
        if used != given:
            raise ValueError(f"its segments use {used} tokens and side bytes of {given}")


def decode_turn(record: Mapping[str, Any], cursor: SegmentReader) -> Turn:
    """The turn of a record; a field that the record lacks has its default."""
    context = tuple(cursor.segment(layout) for layout in record["context"])
    completion = tuple(cursor.segment(layout) for layout in record["completion"])
    sampling = record["sampling"] and dict(record["sampling"])
    for name in ("stop_token_ids", "stop") if sampling else ():
        sampling[name] = tuple(sampling[name])
    return Turn(
        **{
            **{name: record[name] for name in _TURN_FIELDS if name in record},
            "context": context,
            "completion": completion,
            "observed": tuple(record["observed"]),
            "images": tuple(record["images"]),
            "calls": tuple(_decode_call(call) for call in record["calls"]),
            "sampling": sampling and SamplingParams(**sampling),
        }
    )


def _decode_call(record: Mapping[str, Any]) -> CallRecord:
    call = record["call"]
    problem = record["problem"]
    result = record["result"]
    return CallRecord(
        call=call and ToolCall(**call),
        problem=problem and CallProblem(**problem),
        result=result and ToolResult(**{**result, "images": tuple(result["images"])}),
    )


_PLAIN = (
    *("group_index", "rollout_index", "attempt", "group_size", "purpose"),
    *("reward", "started_at", "ended_at"),
)
_WORDS = ("label", "stage", "env")
JSON_FIELDS = (
    *("rewards", "reasons", "timings", "info"),
    *("first_state", "last_observed", "last_info"),
)
"""Fields of a trajectory whose columns have their names; these hold JSON."""


def encode_trajectory(
    trajectory: Trajectory, *, step: int, recorded_at: float
) -> EncodedRow:
    """The row and arrays of a trajectory that finished in ``step``.

    Args:
        trajectory: what to store.
        step: the training step in which it finished.
        recorded_at: seconds since the epoch; the newest of several records of one id counts.

    Raises:
        StoreError: a side array holds objects or structures.
    """
    arrays = token_arrays(trajectory)
    versions = trajectory.policy_versions
    task = trajectory.task
    status = trajectory.status
    turns = trajectory.turns
    opening = (turns[0].observed if turns else ()) or task.messages
    row = {
        **{name: getattr(trajectory, name) for name in _PLAIN},
        **{name: encodable(getattr(trajectory, name)) for name in ("id", *_WORDS)},
        **{name: to_json(getattr(trajectory, name)) for name in JSON_FIELDS},
        "reward": None if trajectory.reward is None else float(trajectory.reward),
        "started_at": float(trajectory.started_at),
        "ended_at": float(trajectory.ended_at),
        "recorded_at": recorded_at,
        "step": step,
        "agents": _once(turn.agent for turn in turns),
        "task_id": encodable(task.id),
        "data_source": encodable(task.data_source),
        "task": to_json(fields_of(task)),
        "status": status.kind,
        "status_reason": encodable(status.reason),
        "status_detail": encodable(status.detail),
        "num_turns": len(turns),
        **_calls(turns),
        "finish_reason": encodable(turns[-1].finish_reason) if turns else None,
        "info_numbers": to_json(dict(_numbers(trajectory.info))),
        "num_policy_tokens": trajectory.num_policy_tokens,
        "num_tokens": int(arrays.token_ids.size),
        "policy_version_min": min(versions, default=None),
        "policy_version_max": max(versions, default=None),
        # what a search looks through: the words of the opening conversation
        "prompt": encodable(
            "\n".join(content_text(message.get("content")) for message in opening)
        ),
        "final_text": encodable(turns[-1].text) if turns else "",
        "turns": to_json(list(map(encode_turn, turns, sequence_indices(turns)))),
    }
    return row, arrays


def decode_trajectory(row: Mapping[str, Any], arrays: TokenArrays) -> Trajectory:
    """The trajectory of a row.

    Raises:
        StoreError: the row and its arrays do not fit, or a column is not what ``encode_trajectory``
            writes.
    """
    try:
        cursor = SegmentReader(arrays)
        turns = tuple(decode_turn(turn, cursor) for turn in from_json(row["turns"]))
        cursor.assert_used()
        task = from_json(row["task"])
        own = {name: row[name] for name in (*_PLAIN, *_WORDS)}
        own |= {name: from_json(row[name]) for name in JSON_FIELDS}
        own["last_observed"] = tuple(own["last_observed"])
        return Trajectory(
            **own,
            task=Task(**{**task, "messages": tuple(task["messages"])}),
            turns=turns,
            status=Status(row["status"], row["status_reason"], row["status_detail"]),
        )
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"trajectory {row.get('id')!r} cannot be read back: {error!r}"
        ) from error


def _calls(turns: Sequence[Turn]) -> Row:
    """The columns about tool calls; one that could not be read is a call and an error."""
    calls = [call for turn in turns for call in turn.calls]
    errors = [call.error for call in calls if call.error is not None]
    return {
        "num_calls": len(calls),
        "num_tool_errors": len(errors),
        # a name that the model invented is no tool
        "tools": _once(
            record.call.name
            for record in calls
            if record.call is not None and record.error != "unknown_tool"
        ),
        "errors": to_json(Counter(errors)),
    }


def _numbers(info: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The finite numbers at the top of ``info``; a truth value is 0 or 1."""
    for name, value in info.items():
        if isinstance(value, int | np.integer | np.bool_) and abs(int(value)) < 2**63:
            yield name, int(value)
        elif isinstance(value, float | np.floating) and math.isfinite(value):
            yield name, float(value)


def _once(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of first appearance."""
    return [encodable(name) for name in dict.fromkeys(names)]
