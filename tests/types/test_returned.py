"""What a user's code may give back as a number, and as JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from agentrl.types.user_code.values import finite_number, shown, to_json


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (-0.5, -0.5),
        (True, 1.0),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (10**300, 1e300),
        (10**400, None),
        (Fraction(10**400), None),
        (Decimal("1e400"), None),
        (Decimal("sNaN"), None),
        (math.nan, None),
        (-math.inf, None),
        (np.float32("inf"), None),
        (1 + 0j, None),
        (np.complex64(1), None),
        (np.array(1j), None),
        (np.array([0.5]), None),
        (torch.tensor([0.5]), None),
        (np.datetime64("2026-01-01"), None),
        (np.str_("1"), None),
        ("0.5", None),
        (b"1", None),
        (None, None),
        ([1.0], None),
        ((1.0, {}), None),
        ({"score": 1.0}, None),
    ],
)
def test_what_counts_as_a_number(value: object, number: float | None) -> None:
    assert finite_number(value) == number


@dataclasses.dataclass
class Point:
    x: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(1.5), "1.5"),
        (np.arange(3), "[0, 1, 2]"),
        (torch.ones(2), "[1.0, 1.0]"),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.items(), '[["a", 1]]'),
        (range(2), "[0, 1]"),
        ({np.float64(1.0)}, "[1.0]"),
        ({"rows": [Point(np.arange(2))]}, '{"rows": [{"x": [0, 1]}]}'),
        (Counter("aab"), '{"a": 2, "b": 1}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        ("é", '"é"'),
    ],
)
def test_what_becomes_json(value: object, text: str) -> None:
    assert to_json(value) == text


def itself() -> dict[str, object]:
    made: dict[str, object] = {}
    made["itself"] = made
    return made


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": object()},
        Point(object()),
        np.array([object()]),
        {(1, 2): 3},
        itself(),
        len,
    ],
    ids=[
        "object",
        "in a mapping",
        "in a dataclass",
        "in an array",
        "keys",
        "itself",
        "function",
    ],
)
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_a_value_is_shown_whatever_it_is() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise asyncio.InvalidStateError

    assert shown(Bad()) == "a value of type Bad"
    assert shown(10**5000) == "a value of type int"  # too many digits for Python
    assert shown("x" * 200) == "'" + "x" * 159 + "…"
