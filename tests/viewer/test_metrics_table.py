"""Metrics by stage: what the viewer sends is what ``metrics.jsonl`` says, stage by stage."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.viewer.runs.metrics_table import TOKENS, MetricsTable, StageMetrics, extremes
from agentrl.viewer.views.metrics_view import csv_text
from agentrl.viewer.views.settings_view import by_stage

NAMES = ("reward/mean", "eval/code/greedy", "policy/loss", TOKENS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(0, 6),
            "stage": st.sampled_from(["warmup", "rl", "__proto__"]),
        },
        optional={
            "time": st.floats(1e9, 2e9),
            TOKENS: st.integers(0, 1000),
            **{
                name: st.floats()
                | st.integers(-5, 5)
                | st.sampled_from([None, {"$float": "nan"}])
                for name in NAMES[:3]
            },
        },
    ),
    max_size=25,
)


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def told(rows: list[dict[str, Any]], lost: list[dict[str, Any]] = []) -> MetricsTable:  # noqa: B006
    """The table of a file of these lines, read in two looks; a resumed run took back ``lost``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        table = MetricsTable(path)
        half = len(rows) // 2
        for part in (rows[:half], rows[:half] + lost, rows):
            path.write_bytes(lines(part))
            table.refresh()
        return table


def answered(table: MetricsTable, **asked: Any) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = json.loads(json.dumps(table.as_json(**asked)))["stages"]
    return stages


def logged(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """By stage and metric, the last finite value that the file has of a step."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        for name in (*NAMES, "time"):
            value = row.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault((row["stage"], name), {})[row["step"]] = value
    return found


@given(ROWS, ROWS)
@settings(max_examples=150, deadline=None)
def test_curves_are_the_lines_of_the_file_by_stage(
    rows: list[dict[str, Any]], lost: list[dict[str, Any]]
) -> None:
    table = told(rows, lost)
    wanted = logged(rows)
    seen: dict[tuple[str, str], dict[int, float]] = {}
    for stage in answered(table):
        for name, curve in stage["series"].items():
            key = (stage["stage"], name)
            seen[key] = dict(zip(curve["step"], curve["value"], strict=True))
            assert curve["step"] == sorted(seen[key])
            assert curve["of"] == len(seen[key])
            times = wanted.get((stage["stage"], "time"), {})
            assert curve["time"] == [times.get(step) for step in curve["step"]]
            counts = wanted.get((stage["stage"], TOKENS))
            assert curve["tokens"] == [
                counts and sum(counts[own] for own in counts if own <= step)
                for step in curve["step"]
            ]
    assert {key: points for key, points in seen.items() if points} == {
        key: points for key, points in wanted.items() if key[1] != "time"
    }


@pytest.mark.slow
@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_a_csv_has_every_value(rows: list[dict[str, Any]]) -> None:
    names = [*NAMES, "=cmd()"]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for line in csv.DictReader(io.StringIO(csv_text(told(rows), names), newline="")):
        assert line["'=cmd()"] == ""
        for name in NAMES:
            if line[name]:
                found.setdefault((line["stage"], name), {})[int(line["step"])] = float(
                    line[name]
                )

    assert found == {
        key: points for key, points in logged(rows).items() if key[1] != "time"
    }


@given(st.lists(st.floats(-1e6, 1e6), max_size=400), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_a_thinned_curve_has_its_ends_and_extremes(values: list[float], most: int) -> None:
    kept = extremes(np.array(values), most).tolist()

    assert kept == sorted(set(kept))
    assert len(kept) <= max(most, 4)
    if values:
        assert {0, len(values) - 1} <= set(kept)
        chosen = [values[place] for place in kept]
        assert (min(chosen), max(chosen)) == (min(values), max(values))


def test_a_metric_that_is_never_a_number_is_named_and_counted() -> None:
    rows = [{"step": step, "stage": "rl", "policy/loss": float("nan")} for step in (1, 2)]

    [stage] = answered(told([*rows, {"step": 3, "stage": "rl", "turns/mean": 2}]))

    assert stage["names"] == ["policy/loss", "turns/mean"]
    assert stage["unreadable"] == {"policy/loss": 2}
    assert stage["series"]["policy/loss"]["value"] == []
    # one value alone
    assert stage["series"]["turns/mean"] == {
        "step": [3],
        "time": [None],
        "tokens": [None],
        "value": [2],
        "of": 1,
    }


@pytest.mark.slow
def test_a_million_steps_are_thinned_and_told(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.jsonl")
    own = table.stages["rl"] = StageMetrics()
    for step in range(1_000_000):
        own.add({"step": step, "a": 7 if step == 654_321 else step % 2})

    [stage] = answered(table, names=["a"])

    curve = stage["series"]["a"]
    assert (stage["steps"], curve["of"], len(curve["value"])) == (
        1_000_000,
        1_000_000,
        1000,
    )
    assert (curve["step"][0], curve["step"][-1], max(curve["value"])) == (0, 999_999, 7)
    assert curve["step"][curve["value"].index(7)] == 654_321


def test_evaluations_of_several_sets_at_one_step_are_one_row() -> None:
    rows = [
        {"step": 9, "stage": "warmup", "time": 9.0, "reward/mean": 0.9},
        {"step": 0, "stage": "rl", "time": 10.0, "eval/code/greedy": 0.5},
        {"step": 0, "stage": "rl", "time": 11.0, "reward/mean": float("nan")},
        {"step": 1, "stage": "rl", "time": 12.0, "reward/mean": 0.25},
    ]

    table = told(rows)

    assert table.stage("warmup").rows() == [{"step": 9, "time": 9.0, "reward/mean": 0.9}]
    assert table.stage("rl").rows() == [
        {"step": 0, "time": 11.0, "eval/code/greedy": 0.5},
        {"step": 1, "time": 12.0, "reward/mean": 0.25},
    ]
    assert table.stage("rl").row(0) == {"step": 0, "time": 11.0, "eval/code/greedy": 0.5}


def test_settings_have_their_stages_by_name() -> None:
    config = {
        "run": {"seed": 0},
        "stages": [{"name": "sft", "optim": {"lr": 1}}, {"name": "rl", "optim": {"lr": 2}}],
    }

    assert by_stage(config) == {
        "run": {"seed": 0},
        "stages": {"sft": {"optim": {"lr": 1}}, "rl": {"optim": {"lr": 2}}},
    }
