"""The filter and the order of the table of runs; run in Node."""

from __future__ import annotations

import pytest

from tests.viewer.test_page_modules import in_node


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "abc"),
        ("SUM alive", "a"),
        ("step>=20", "b"),
        ("optim.lr<0.01", "a"),
        ("reward/mean>0.4", "b"),
        ("state!=alive", "bc"),
        ("tag:good", "c"),
        ("tag:goo", ""),
        ("rollout.stop=[]", "no column rollout.stop is shown"),
    ],
)
def test_runs_are_found_by_words_and_comparisons(text: str, found: str) -> None:
    columns = ["setting:stages.rl.optim.lr", "metric:reward/mean"]
    runs = [
        {
            "name": "sums",
            "key": "a",
            "state": "alive",
            "step": 9,
            "columns": dict(zip(columns, (0.001, 0.3), strict=True)),
        },
        {
            "name": "sums",
            "key": "b",
            "state": "finished",
            "step": 20,
            "columns": dict(zip(columns, (0.01, 0.5), strict=True)),
        },
        {
            "name": "__proto__",
            "key": "c",
            "state": "stopped",
            "step": None,
            "tags": [{"labels": ["good"]}],
        },
    ]
    body = """
        const { fits, error } = m.runFilter(given.text, given.columns);
        return error.split(":")[0] || given.runs.filter(fits).map((run) => run.key).join("");"""

    assert (
        in_node("lib/run_filter.js", body, {"text": text, "columns": columns, "runs": runs})
        == found
    )


def test_runs_are_sorted_by_any_column_those_without_a_value_last() -> None:
    runs = [
        {"key": key, "columns": {"metric:m": value}}
        for key, value in zip("abcd", (2, None, 10, -1), strict=True)
    ]
    body = """
        const keys = (sort) => m.sortedRuns(given, sort).map((run) => run.key).join("");
        return ["metric:m", "-metric:m", ""].map(keys);"""

    assert in_node("lib/run_filter.js", body, runs) == ["dacb", "cadb", "abcd"]
