"""The token model: columns, colour scales, thresholds and jumps, worked by hand."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.viewer.browser.trajectory.conftest import Call

pytestmark = pytest.mark.browser

NAN = math.nan


def packed(values: Sequence[float], dtype: str) -> dict[str, str]:
    data = np.array(values, np.dtype(dtype)).tobytes()
    return {"dtype": dtype, "data": base64.b64encode(data).decode()}


def answer(
    columns: dict[str, dict[str, Any]], turns: Sequence[int], **rest: Any
) -> dict[str, Any]:
    count = len(turns)
    return {
        "num_tokens": count,
        "ids": packed(range(count), "<i4"),
        "kinds": packed([1] * count, "|i1"),
        "turn": packed(turns, "<i4"),
        "sequence": packed([0] * count, "<i4"),
        "pieces": ["ab"] * count,
        "columns": columns,
        **rest,
    }


def column(values: Sequence[float], scale: str, **facts: Any) -> dict[str, Any]:
    return {"level": "token", "scale": scale, "values": packed(values, "<f4"), **facts}


def with_column(
    in_module: Call,
    values: Sequence[float],
    scale: str,
    body: str,
    given: object = None,
    **facts: Any,
) -> Any:
    told = answer({"x": column(values, scale, **facts)}, [0] * len(values))
    code = f"""
        const column = new m.TokenModel(given.told).columns.get("x");
        const palette = await import("/trajectory/tokens/palette.js");
        const classes = () => Array.from(palette.paintLevels(column), (l) => palette.CLASSES[l]);
        given = given.given;
        {body}
    """
    return in_module("token_model.js", code, {"told": told, "given": given})


@pytest.mark.parametrize(
    ("values", "scale", "form"),
    [
        ([0.0, 2.0], "linear", "high"),
        ([-4.0, 0.0], "linear", "low"),
        ([-4.0, 1.0], "linear", "centre"),
        ([0.5, 0.5], "diverging", "centre"),
        ([0.8, 1.2], "log", "ratio"),
        ([0, 1], "category", "category"),
    ],
)
def test_a_column_s_values_decide_what_is_remarkable(
    in_module: Call, values: list[float], scale: str, form: str
) -> None:
    assert with_column(in_module, values, scale, "return column.form") == form


def test_colours_are_graded_by_distance_from_the_unremarkable(in_module: Call) -> None:
    classes = "return classes()"
    # 12 steps of |v| up to 2; NaN has no colour
    assert with_column(in_module, [-2, -1, 0, 1, 2, NAN], "diverging", classes) == [
        "n11", "n6", "p0", "p6", "p11", "",
    ]  # fmt: skip
    assert with_column(in_module, [-4, -2, 0], "linear", classes) == ["s11", "s6", "s0"]
    assert with_column(in_module, [0.5, 1, 2], "log", classes) == ["n11", "p0", "p11"]
    names = ["no", "low", "high"]
    found = with_column(in_module, [0, 2, NAN], "category", classes, categories=names)
    assert found == ["c0", "c2", ""]


def test_a_threshold_counts_the_tokens_beyond_it(in_module: Call) -> None:
    body = "return given.map((t) => m.countFrom(column, t))"
    assert with_column(in_module, [-3, 1, 2, NAN], "diverging", body, [0, 2, 3, 3.5]) == [
        3,
        2,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("values", "scale", "severity", "text"),
    [
        ([-4, -1], "linear", 2.5, "≤ -2.500 nats"),
        ([-4, 1], "diverging", 2, "|value| ≥ 2 nats"),
        ([0.5, 2], "log", math.log(2), "≥ 2 or ≤ 0.5000 nats"),
        ([1, 2], "linear", 1.5, "≥ 1.500 nats"),
    ],
)
def test_a_threshold_is_named_in_the_column_s_terms(
    in_module: Call, values: list[float], scale: str, severity: float, text: str
) -> None:
    body = "return m.thresholdText(column, given)"
    assert with_column(in_module, values, scale, body, severity, unit="nats") == text


def test_jumps_go_from_the_worst_on(in_module: Call) -> None:
    body = "return m.jumpOrder(column, given)"
    values = [-0.1, -5, NAN, -2, 0, -5]
    assert with_column(in_module, values, "linear", body, 10) == [1, 5, 3, 0]
    assert with_column(in_module, values, "linear", body, 2) == [1, 5]


def test_a_category_s_unremarkable_value_is_its_first(in_module: Call) -> None:
    body = "return [m.jumpOrder(column, 9), column.text(1), column.text(3)]"
    found = with_column(
        in_module, [0, 2, 0, NAN, 1], "category", body, categories=["no", "low", "high"]
    )
    assert found == [[1, 4], "high", ""]


def test_an_infinite_value_is_the_worst_and_spoils_no_scale(in_module: Call) -> None:
    body = "return [m.jumpOrder(column, 1), column.limit, classes()]"
    assert with_column(in_module, [-math.inf, -1, -2], "linear", body) == [
        [0], 2, ["s11", "s6", "s11"],
    ]  # fmt: skip


def test_values_of_turns_and_of_the_trajectory_are_spread(in_module: Call) -> None:
    told = answer(
        {
            "by_turn": {**column([3, 4], "linear"), "level": "turn"},
            "whole": {**column([7], "linear"), "level": "trajectory"},
        },
        [0, 0, 1],
    )
    body = """const model = new m.TokenModel(given);
        const values = (name) => Array.from(model.columns.get(name).values);
        return [values("by_turn"), values("whole"), model.signals];"""
    assert in_module("token_model.js", body, told) == [
        [3, 3, 4], [7, 7, 7], ["kind", "by_turn", "whole"],
    ]  # fmt: skip


def test_versions_are_categories_that_rank_nothing(in_module: Call) -> None:
    told = answer({"policy_versions": column([NAN, 3, 12], "linear")}, [0, 0, 0])
    body = """const model = new m.TokenModel(given);
        const column = model.columns.get("policy_versions");
        return [column.form, column.distinct, m.jumpOrder(column, 5)];"""
    assert in_module("token_model.js", body, told) == ["category", [3, 12], []]


def test_blocks_hold_one_turn_and_end_after_newlines(in_module: Call) -> None:
    body = """
        const {turn, pieces} = given;
        const model = {count: turn.length, turn, pieces, sequence: turn.map(() => 0)};
        return m.partition(model).map(({start, end, head}) => [start, end, head]);"""
    pieces = ["a"] * 300
    pieces[119] = "\n"
    given = {"turn": [0] * 200 + [1] * 100, "pieces": pieces}
    assert in_module("tokens/partition.js", body, given) == [
        [0, 120, True], [120, 200, False], [200, 300, True],
    ]  # fmt: skip


def test_heights_find_their_block_and_take_measures(in_module: Call) -> None:
    body = """
        const heights = new m.BlockHeights([10, 20, 30]);
        const before = [...[0, 10, 29, 99].map((offset) => heights.at(offset)), heights.total];
        const grown = heights.measure(0, 15);
        return [before, grown, heights.top(1), heights.top(2), heights.total];"""
    assert in_module("tokens/partition.js", body) == [[0, 1, 1, 2, 60], 5, 15, 35, 65]


@pytest.mark.parametrize(
    ("piece", "hex_bytes", "shown"),
    [
        ("\n", None, "↵\n"),
        ("a\tb", None, "a⇥\tb"),
        ("\x1b[31m", None, "⟨U+001B⟩[31m"),
        ("\u202e", None, "⟨U+202E⟩"),
        ("\u200b", None, "⟨U+200B⟩"),
        ("日本 🎉", None, "日本 🎉"),
        ("�", "e282", "\\xe2\\x82"),
    ],
)
def test_what_cannot_be_seen_is_shown(
    in_module: Call, piece: str, hex_bytes: str | None, shown: str
) -> None:
    body = "return m.shownPiece(given[0], given[1] ?? undefined)"
    assert in_module("tokens/display.js", body, [piece, hex_bytes]) == shown
