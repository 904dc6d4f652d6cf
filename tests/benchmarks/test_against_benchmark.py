"""Two checkouts compared by the medians of their figures."""

from __future__ import annotations

import pytest

from benchmarks.against import compare, ratio_of
from benchmarks.figures import Figures

pytestmark = pytest.mark.tooling


@pytest.mark.parametrize(
    ("unit", "ratio"),
    [("s", 2.0), ("MiB", 2.0), ("tokens/s", 0.5), ("x", None), ("", None)],
)
def test_what_is_worse_lies_above_one(unit: str, ratio: float | None) -> None:
    assert ratio_of([4.0, 9.0, 1.0], [2.0, 2.0, 50.0], unit) == ratio


def test_figures_of_one_side_alone_are_left_out() -> None:
    figures = Figures()
    ours = [{"read": (1.0, "s"), "new": (1.0, "s"), "share": (0.5, "")}]
    compare(figures, ours, [{"read": (2.0, "s"), "share": (0.4, "")}])
    assert [(row.name, row.value, row.met) for row in figures.rows if row.target] == [
        ("read", 0.5, True)
    ]


def test_a_median_of_nothing_is_no_ratio() -> None:
    assert ratio_of([0.0], [1.0], "s") is None
