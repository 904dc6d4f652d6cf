"""Records of experts: their form, their own words for what does not fit, and rows that stay with
their tokens.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

from agentrl.types import RoutingShape, Segment, SegmentKind, share_experts
from agentrl.types.arrays import recorded, row_numbers

SHAPE = RoutingShape(layers=2, experts=4, top_k=3)


def record(tokens: int, shape: RoutingShape = SHAPE) -> Any:
    rows = np.arange(tokens * shape.layers * shape.top_k) % shape.experts
    return rows.reshape(tokens, shape.layers, shape.top_k).astype(shape.dtype)


def prompt(tokens: int, experts: Any = None) -> Segment:
    segment = Segment(SegmentKind.PROMPT, np.arange(tokens))
    return segment if experts is None else segment.with_experts(experts)


def test_a_byte_holds_a_number_and_that_of_none() -> None:
    found = [RoutingShape(1, experts, 1).dtype for experts in (1, 255, 256, 60_000)]
    assert found == [np.uint8, np.uint8, np.uint16, np.uint16]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (
            record(3)[:, :1],
            r"it has uint8 of shape \(3, 1, 3\), .* has uint8 \[tokens, 2, 3\]",
        ),
        (record(3)[:, :, :2], r"of shape \(3, 2, 2\)"),
        (record(3).astype(np.uint16), "it has uint16 of"),
        (record(3).astype(np.int64), "it has int64 of"),
        (record(3)[0], r"it has uint8 of shape \(2, 3\)"),
        (
            record(3) + np.uint8(1),
            "names expert 4, and a model of 2 layers of 4 experts, 3 a",
        ),
    ],
    ids=["layers", "k", "another model", "dtype", "dimensions", "range"],
)
def test_a_record_of_another_model_is_named(wrong: Any, named: str) -> None:
    assert re.search(named, SHAPE.fault(wrong))
    assert SHAPE.fault(record(3)) == SHAPE.fault(SHAPE.unrecorded(2)) == ""


def test_a_row_that_is_half_a_record_is_out_of_range() -> None:
    half = record(2)
    half[1, 0, 0] = 255
    assert "names expert 255" in SHAPE.fault(half)


def test_a_segment_takes_a_row_for_each_token_and_keeps_them_over_a_process() -> None:
    with pytest.raises(ValueError, match="'routed_experts' has 2 rows for 3 tokens"):
        prompt(3, record(2))
    segment = prompt(3, record(3))
    again = pickle.loads(pickle.dumps(segment))
    assert (again.routed_experts == record(3)).all()
    # layers · k bytes a token, and no more of an array that it is a part of
    more = prompt(100, np.broadcast_to(record(1), (1000, 2, 3))[:100])
    spare = len(pickle.dumps(prompt(100))) + 300
    assert len(pickle.dumps(more)) <= spare + 100 * 2 * 3
    assert segment.with_experts(None).routed_experts is None


def test_segments_share_a_record_and_what_is_behind_it_has_none() -> None:
    known = record(4)
    one, two, three = share_experts([prompt(3), prompt(2), prompt(1)], known)
    assert (one.routed_experts == known[:3]).all()
    assert (two.routed_experts[:1] == known[3:]).all()
    assert recorded(two.routed_experts).tolist() == [True, False]
    assert recorded(three.routed_experts).tolist() == [False]


def test_tokens_are_alike_with_their_experts() -> None:
    ids = np.array([1, 1, 1, 2], np.int32)
    known = record(4)[[0, 0, 1, 0]]
    assert row_numbers(ids, known).tolist() == [0, 0, 1, 2]
