"""Metrics by stage: what the viewer sends is what ``metrics.jsonl`` says, stage by stage."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.viewer.runs.metrics_table import MetricsTable
from agentrl.viewer.views.run_view import settings_of

NAMES = ("reward/mean", "eval/code/greedy", "policy/loss")
ROWS = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(0, 6), "stage": st.sampled_from(["warmup", "rl", "__proto__"])},
        optional={
            "time": st.floats(1e9, 2e9),
            **{name: st.floats() | st.integers(-5, 5) | st.just("x") for name in NAMES},
        },
    ),
    max_size=25,
)


def told(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the viewer answers of a file of these lines, read in two looks."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        table = MetricsTable(path)
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in part)
            table.refresh()
        answer: dict[str, Any] = json.loads(json.dumps(table.as_json(NAMES)))
        return answer


@given(ROWS)
@settings(max_examples=150, deadline=None)
def test_curves_are_the_lines_of_the_file_by_stage(rows: list[dict[str, Any]]) -> None:
    curves = {
        (one["stage"], name): [
            (step, value)
            for step, value in zip(one["columns"]["step"], one["columns"][name], strict=True)
            if value is not None
        ]
        for one in told(rows)["stages"]
        for name in one["columns"]
        if name in NAMES
    }

    logged: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        for name in NAMES:
            value = row.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                logged.setdefault((row["stage"], name), {})[row["step"]] = value
    assert curves == {key: sorted(points.items()) for key, points in logged.items()}


def test_evaluations_of_several_sets_at_one_step_are_one_row() -> None:
    rows = [
        {"step": 9, "stage": "warmup", "time": 9.0, "reward/mean": 0.9},
        {"step": 0, "stage": "rl", "time": 10.0, "eval/code/greedy": 0.5},
        {"step": 0, "stage": "rl", "time": 11.0, "reward/mean": float("nan")},
        {"step": 1, "stage": "rl", "time": 12.0, "reward/mean": 0.25},
    ]

    first, second = told(rows)["stages"]

    assert first == {"stage": "warmup", "columns": {"step": [9], "time": [9.0], NAMES[0]: [0.9]}}
    assert second["columns"] == {
        "step": [0, 1],
        "time": [11.0, 12.0],
        "reward/mean": [None, 0.25],
        "eval/code/greedy": [0.5, None],
    }


def test_settings_have_their_stages_by_name() -> None:
    config = {
        "run": {"seed": 0},
        "stages": [{"name": "sft", "optim": {"lr": 1}}, {"name": "rl", "optim": {"lr": 2}}],
    }

    assert settings_of(config) == {
        "run": {"seed": 0},
        "stages": {"sft": {"optim": {"lr": 1}}, "rl": {"optim": {"lr": 2}}},
    }
