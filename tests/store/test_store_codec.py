"""A trajectory comes back from its row with every field as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import StoreError
from agentrl.store import TokenArrays, decode_trajectory, encode_trajectory
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
)


def same(left: Any, right: Any) -> bool:
    """Equal in every field and bit; a NaN equals a NaN."""
    if isinstance(left, np.ndarray):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left)
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            same(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(
            same(a, b) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return bool(left == right) and type(left) is type(right)


def round_trip(trajectory: Trajectory) -> Trajectory:
    row, arrays = encode_trajectory(trajectory, step=3, recorded_at=1.5)
    return decode_trajectory(row, TokenArrays.unpack(arrays.pack(), row["num_tokens"]))


numbers = st.floats(width=64)
texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
infos = st.dictionaries(texts, json_values, max_size=3)
scores = st.dictionaries(texts, numbers, max_size=3)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    kind = draw(st.sampled_from(SegmentKind))
    token_ids = draw(ids)
    count = len(token_ids)
    policy = kind is SegmentKind.POLICY
    logprobs = draw(
        st.lists(st.floats(max_value=0, width=32), min_size=count, max_size=count)
    )
    side = {}
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(["int16", "float16", "bool", "int64", "S3", ">f4"]))
        shape = (count, *draw(st.lists(st.integers(0, 3), max_size=2)))
        side["experts"] = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    media = (
        (MediaSpan(0, count, "ab" * 32, "image"),) if count and draw(st.booleans()) else ()
    )
    return Segment(
        kind,
        np.array(token_ids, dtype=np.int32),
        np.array(logprobs, dtype=np.float32) if policy else None,
        draw(st.integers(0, 2**31 - 1)) if policy else None,
        media,
        side,
    )


call_records = st.builds(
    CallRecord,
    call=st.none() | st.builds(ToolCall, id=texts, name=texts, arguments=infos),
    problem=st.none()
    | st.builds(CallProblem, id=texts, kind=st.just("unclosed"), detail=texts, raw=texts),
    result=st.none()
    | st.builds(
        ToolResult,
        call_id=texts,
        name=texts,
        content=texts,
        error=st.sampled_from([None, "timeout"]),
        latency_s=numbers,
        truncated=st.booleans(),
        metrics=st.none() | scores,
    ),
)
messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.just("user"),
    texts | json_values,
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    turns = tuple(
        Turn(
            index=index,
            parent=draw(st.sampled_from([None, *range(index)])),
            context=tuple(draw(st.lists(segments(), max_size=3))),
            completion=tuple(draw(st.lists(segments(), max_size=2))),
            text=draw(texts),
            message=draw(messages),
            observed=tuple(draw(st.lists(messages, max_size=2))),
            calls=tuple(draw(st.lists(call_records, max_size=2))),
            finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
            sampling=draw(
                st.none()
                | st.just(
                    SamplingParams(
                        64,
                        0.7,
                        0.9,
                        5,
                        0.1,
                        stop_token_ids=(1, 2),
                        stop=("</tool_call>", "\n"),
                    )
                )
            ),
            rewards=draw(scores),
            state_key=draw(texts),
            agent=draw(texts),
            stale_kv=draw(st.sampled_from(["never", "within_call", "always"])),
            cached_tokens=draw(st.integers(0, 10**6)),
            timings=draw(scores),
            info=draw(infos),
        )
        for index in range(draw(st.integers(0, 3)))
    )
    return Trajectory(
        task=draw(
            st.builds(
                Task,
                id=texts,
                messages=st.lists(messages, max_size=2).map(tuple),
                answer=json_values,
                data_source=texts,
                info=infos,
            )
        ),
        group_index=draw(st.integers(0, 2**40)),
        rollout_index=draw(st.integers(0, 2**20)),
        attempt=draw(st.integers(0, 9)),
        purpose=draw(st.sampled_from(["train", "baseline", "eval"])),
        turns=turns,
        status=draw(
            st.builds(
                Status,
                kind=st.sampled_from(["terminated", "truncated", "failed", "cancelled"]),
                reason=texts,
                detail=texts,
            )
        ),
        rewards=draw(scores),
        reward=draw(st.none() | numbers),
        label=draw(texts),
        timings=draw(scores),
        info=draw(infos),
    )


@given(trajectories())
def test_every_field_comes_back(trajectory: Trajectory) -> None:
    assert same(round_trip(trajectory), trajectory)


def trajectory_with(**changes: Any) -> Trajectory:
    given_fields: dict[str, Any] = {
        "task": Task("t"),
        "group_index": 0,
        "rollout_index": 0,
        "attempt": 0,
        "purpose": "train",
        "turns": (),
        "status": Status("terminated"),
    }
    return Trajectory(**{**given_fields, **changes})


class Unshowable:
    """Its text cannot be had."""

    def __repr__(self) -> str:
        raise ConnectionError("closed")


class ClosedShelf(Mapping[str, int]):
    """A mapping whose file is closed."""

    __repr__ = Unshowable.__repr__

    def __getitem__(self, key: str) -> int:
        raise ValueError("closed")

    def __iter__(self) -> Iterator[str]:
        raise ValueError("closed")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.float32(0.5), 0.5),
        # in lists: pytest writes out a bare integer
        ([2**64 + 1, 10**4299], [2**64 + 1, 10**4299]),
        ([10**4300], [{"$repr": "int: a value of type int"}]),
        ([np.array([10**5000, 1])], [[{"$repr": "int: a value of type int"}, 1]]),
        ({10**5000: 1}, {"a value of type int": 1}),
        (
            {Unshowable(): 1, 2: 10**5000},
            {
                "a value of type Unshowable": 1,
                "2": {"$repr": "int: a value of type int"},
            },
        ),
        ([Unshowable()], [{"$repr": "Unshowable: a value of type Unshowable"}]),
        ({Unshowable()}, {"$repr": "set: a value of type set"}),
        (ClosedShelf(), {"$repr": "ClosedShelf: a value of type ClosedShelf"}),
        (np.arange(3), [0, 1, 2]),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        ({1, 2}, {"$repr": "set: {1, 2}"}),
        ("half a pair: \udc80", "half a pair: \udc80"),
    ],
)
def test_what_json_has_no_word_for(value: Any, stored: Any) -> None:
    assert round_trip(trajectory_with(info={"x": value})).info == {"x": stored}


def test_a_message_without_content_has_no_words() -> None:
    message: Any = {"role": "assistant", "tool_calls": []}
    row, _ = encode_trajectory(
        trajectory_with(task=Task("t", (message,))), step=0, recorded_at=0.0
    )
    assert row["prompt"] == ""


def test_a_cycle_ends() -> None:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle

    assert "$repr" in str(round_trip(trajectory_with(info=cycle)).info)


def test_tokens_are_flat_with_their_origin() -> None:
    prompt = Segment(SegmentKind.PROMPT, np.array([5, 6]))
    made = Segment(SegmentKind.POLICY, np.array([7]), np.array([-0.5]), 4)
    turn = Turn(0, None, (prompt,), (made,), "x", {"role": "assistant", "content": "x"})

    row, arrays = encode_trajectory(trajectory_with(turns=(turn,)), step=9, recorded_at=0.0)

    assert arrays.token_ids.tolist() == [5, 6, 7]
    assert np.isnan(arrays.logprobs[:2]).all()
    assert arrays.logprobs[2] == -0.5
    assert arrays.policy_versions.tolist() == [-1, -1, 4]
    assert arrays.kinds.tolist() == [0, 0, 1]
    assert (
        row["num_tokens"],
        row["num_policy_tokens"],
        row["policy_version_min"],
        row["step"],
    ) == (3, 1, 4, 9)


def test_a_side_array_of_objects_is_refused() -> None:
    side = {"x": np.array([object()])}
    turn = Turn(
        0,
        None,
        (Segment(SegmentKind.PROMPT, np.array([1]), side=side),),
        (),
        "",
        {"role": "assistant", "content": ""},
    )

    with pytest.raises(
        StoreError, match="'x' must hold numbers or fixed strings, got dtype object"
    ):
        encode_trajectory(trajectory_with(turns=(turn,)), step=0, recorded_at=0.0)


def test_a_row_that_lost_tokens_is_refused() -> None:
    turn = Turn(
        0,
        None,
        (Segment(SegmentKind.PROMPT, np.array([1, 2])),),
        (),
        "",
        {"role": "assistant", "content": ""},
    )
    row, arrays = encode_trajectory(trajectory_with(turns=(turn,)), step=0, recorded_at=0.0)

    with pytest.raises(
        StoreError, match=r"'0-0-0' cannot be read back.*more than its 1 tokens"
    ):
        decode_trajectory(row, TokenArrays.unpack(arrays.pack(), 1))
