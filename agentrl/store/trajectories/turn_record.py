"""Turn record: a turn as JSON; its segments' tokens lie in ``TokenArrays``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from agentrl.errors import StoreError
from agentrl.store.trajectories.token_arrays import TokenArrays
from agentrl.types import (
    CallProblem,
    CallRecord,
    MediaSpan,
    SamplingParams,
    Segment,
    SegmentKind,
    Task,
    ToolCall,
    ToolResult,
    Turn,
)

_Flat: TypeAlias = (
    Task | SamplingParams | CallRecord | ToolCall | CallProblem | ToolResult | MediaSpan | Turn
)


_READ: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__slots__) for kind in get_args(_Flat)
}
"""What reads all fields of each dataclass at once."""
_TURN_FIELDS = Turn.__slots__
"""What a record may hold for a turn; what else stands in it, such as ``sequence``, is for readers
of the file."""
_LEFT_OUT_WHERE_EMPTY = ("observed_info", "state", "files", "offered_tools")


def fields_of(value: _Flat) -> dict[str, Any]:
    """The fields of a flat dataclass, not copied."""
    read = _READ[type(value)]
    return dict(zip(value.__slots__, read(value), strict=True))


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
        layout["side"] = {name: _array_layout(name, array) for name, array in segment.side.items()}
    return layout


def _array_layout(name: str, array: npt.NDArray[np.generic]) -> dict[str, Any]:
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
            side={name: self._side_array(array) for name, array in layout.get("side", {}).items()},
        )

    def _side_array(self, layout: Mapping[str, Any]) -> npt.NDArray[np.generic]:
        dtype = np.dtype(layout["dtype"])
        shape = tuple(layout["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = (
            np.frombuffer(self._arrays.side, dtype, count, self._side)
            if count
            else np.zeros(0, dtype)
        )
        self._side += count * dtype.itemsize
        return cast("npt.NDArray[np.generic]", array.reshape(shape).copy())

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
