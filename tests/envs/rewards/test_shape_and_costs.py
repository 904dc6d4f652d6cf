"""Form, length and tool costs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.envs.rewards.shape import json_schema, length_cost, text_format, tool_cost
from agentrl.errors import ConfigError, RewardError
from agentrl.types import CallRecord, Segment, SegmentKind, ToolCall, ToolResult

from .episodes import episode

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ('{"n": 1}', 1.0),
        ('Sure:\n```json\n{"n": 1}\n```', 1.0),
        ('{"n": "1"}', 0.0),
        ("[]", 0.0),
        ("n = 1", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_json_by_a_schema(said: str, value: float) -> None:
    assert json_schema(episode(said), schema=SCHEMA).value == value
    assert json_schema(episode(said, info={"schema": SCHEMA})).value == value


@pytest.mark.parametrize(
    ("schema", "rule"),
    [(None, "needs a schema"), ({"type": "number?"}, "the schema is no JSON Schema")],
)
def test_a_schema_that_is_none_is_a_failure(schema: Any, rule: str) -> None:
    with pytest.raises(RewardError, match=rule):
        json_schema(episode("{}"), schema=schema)


def test_a_pattern_fits_the_whole_text() -> None:
    pattern = r"<think>.*</think>\s*<answer>.*</answer>"
    good = "<think>a\nb</think>\n<answer>3</answer>\n"
    assert text_format(episode(good), pattern=pattern).value == 1.0
    assert text_format(episode(good + "more"), pattern=pattern).value == 0.0


def test_a_text_that_makes_a_pattern_slow_is_wrong_after_a_second() -> None:
    start = time.monotonic()
    assert text_format(episode("a" * 5000 + "b"), pattern=r"(a|aa)+$").value == 0.0
    assert time.monotonic() - start < 60


def test_a_pattern_that_is_none_is_a_fault_of_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"pattern='\(' is none"):
        text_format(episode("x"), pattern="(")


@pytest.mark.parametrize(
    ("tokens", "cost"), [(10, 0.0), (15, -0.5), (20, -1.0), (99, -1.0)]
)
def test_length_costs_linearly_between_two_bounds(tokens: int, cost: float) -> None:
    own = episode("x")
    sampled = Segment(
        SegmentKind.POLICY, np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), 0
    )
    given = Segment(SegmentKind.OBSERVATION, np.zeros(50, np.int32))
    turn = replace(own.turns[0], context=(given,), completion=(sampled,))
    assert length_cost(replace(own, turns=(turn,)), free=10, full=20) == cost


def test_calls_cost_beyond_the_free_ones() -> None:
    call = ToolCall("c", "add", {})
    good = CallRecord(call, None, ToolResult("c", "add", "3"))
    bad = CallRecord(call, None, ToolResult("c", "add", "no", error="exception"))
    own = episode("x")
    own = replace(own, turns=(replace(own.turns[0], calls=(good, bad, good)),))
    assert (tool_cost(own), tool_cost(own, free=2)) == (-3.0, -1.0)
    assert tool_cost(own, failed_only=True) == -1.0
