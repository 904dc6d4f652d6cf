"""Findings: changes of one step are one line, which leads to its evidence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.metrics.monitors import HealthSpec
from agentrl.viewer.analysis.blame import BlameRow
from agentrl.viewer.analysis.findings import Curves, findings

STEPS = np.arange(1.0, 31.0)
RECORDED = Path(__file__).with_name("diagnosed_runs.json.gz")
"""Curves of runs of ``benchmarks.diagnosis``, as it writes them."""


def curves(**values: Any) -> Curves:
    """Metrics of thirty steps; a dot in a name is a slash."""
    found = {name: np.array(own, dtype=float) for name, own in values.items()}
    return {
        name.replace("__", "/"): (STEPS[: own.size], own) for name, own in found.items()
    }


def shift(before: float, after: float, step: int) -> list[float]:
    return [before if own < step else after for own in STEPS]


def test_a_fault_is_one_line_with_its_step() -> None:
    logged = curves(
        count__trajectories=[48] * 30,
        tool__error__malformed_frac=shift(0.19, 1.0, 2),
        tool__success_frac=shift(0.81, 0.0, 2),
        reward__std=[0.5] * 30,
        reward__mean=shift(0.6, 0.0, 4),
    )

    found, later = findings(logged)

    assert later.text == "from step 4 on reward/mean went from 0.6 to 0"
    assert found.text == (
        "from step 2 on tool/error/malformed_frac went from 0.19 to 1; so did tool/success_frac"
    )
    assert (found.kind, found.step, found.query) == ("change", 2, "step:2 tool_errors>=1")
    assert found.link == {"page": "trajectories", "query": found.query}
    assert found.chart == {
        "page": "metrics",
        "filter": "tool/error/malformed_frac",
        "at": 2,
    }
    assert [(one.name, one.before, one.after) for one in found.metrics] == [
        ("tool/error/malformed_frac", 0.19, 1.0),
        ("tool/success_frac", 0.81, 0.0),
    ]


def test_a_mismatch_that_does_not_matter_is_no_line() -> None:
    logged = curves(
        mismatch__logp_abs__max=shift(1e-7, 1e-5, 9),
        mismatch__logp_abs__mean=shift(0, 1e-6, 9),
    )

    assert findings(logged) == []


def test_a_spike_leads_to_its_blame_and_names_the_stage() -> None:
    losses = [0.1 + 0.01 * (step % 3) for step in STEPS]
    losses[13] = 3.0
    gaps = [1e-6] * 30
    gaps[8] = 6.0
    worst = BlameRow("4-1-0", 1, 33, 0.01, 6.0, text=" the")
    logged = curves(policy__loss=losses, mismatch__logp_abs__max=gaps)

    mismatch, loss = findings(
        logged, worst_token=lambda step: worst if step == 9 else None, stage="r l"
    )

    assert (loss.kind, loss.step) == ("spike", 14)
    blamed = {
        "page": "blame",
        "step": 14,
        "stage": "r l",
        "signal": "loss",
        "level": "token",
    }
    assert loss.link == blamed
    assert loss.query == 'step:14 stage:"r l" purpose:train'
    assert (mismatch.link["id"], mismatch.link["tokens"]) == ("4-1-0", "33-33")
    assert findings(logged)[0].link["page"] == "blame"


def test_a_source_that_is_drawn_no_more_is_told() -> None:
    logged = dict(curves(count__trajectories=[48] * 30, reward__std=[0.5] * 30))
    logged["reward/hard/mean"] = (STEPS[:19], np.full(19, 0.4))

    (found,) = findings(logged)

    assert found.text == "from step 20 on reward/hard/mean is logged no more, before 0.4"


def test_what_is_bad_from_the_first_step_on_is_told() -> None:
    (found,) = findings(curves(tool__python__error_frac=[0.6] * 30))

    assert found.text == "from step 1 on tool/python/error_frac is 0.6"
    assert found.query == 'step:1 tool:"python" tool_errors>=1'


@pytest.mark.parametrize(
    ("after", "is_told"),
    [(0.9, False), (1.5, False), (2.0, True), (-0.2, True), (0.2, False)],
)
def test_a_reward_that_rises_must_rise_by_more_than_learning_does(
    after: float, is_told: bool
) -> None:
    logged = curves(reward__std=[0.5] * 30, reward__mean=shift(0.4, after, 9))

    assert [one.step for one in findings(logged)] == [9] * is_told


def test_the_thresholds_are_those_of_health() -> None:
    logged = curves(length__response__mean=shift(100, 350, 12))

    assert [one.step for one in findings(logged)] == [12]
    assert findings(logged, health=HealthSpec(length_max_factor=4.0)) == []
    assert findings(logged, health=HealthSpec(length_max_factor=None)) == []


def test_steps_with_other_keys_and_one_value_say_nothing() -> None:
    logged = {
        f"mine/{index}": (STEPS[index : index + 1], np.array([9.0])) for index in range(9)
    }

    assert (
        findings({**logged, "odd": (STEPS[::7], np.array([0.0, 9.0, 0.0, 9.0, 0.0]))}) == []
    )
    assert findings({}) == []


def test_the_newest_alert_is_the_last_line() -> None:
    events = [
        {"time": 1.0, "level": "info", "event": "started", "message": "no alert"},
        {"time": 3.0, "level": "warning", "message": "newest", "trajectory": "1-0-0"},
        {"time": 2.0, "level": "error", "message": "older", "step": 2},
    ]

    found = findings(curves(optim__lr=shift(1e-6, 1e-4, 9)), events)

    assert [(one.kind, one.step) for one in found] == [("change", 9), ("alert", None)]
    assert found[1].text == "newest of 2 alerts: newest"
    assert found[1].link == {"page": "trajectory", "id": "1-0-0"}


def recorded() -> dict[str, dict[str, Any]]:
    with gzip.open(RECORDED, "rt") as file:
        found: dict[str, dict[str, Any]] = json.load(file)
        return found


@pytest.mark.parametrize("name", recorded())
def test_a_real_run_is_diagnosed(name: str) -> None:
    run = recorded()[name]
    logged = {
        metric: (np.array(own[0]), np.array(own[1]))
        for metric, own in run["curves"].items()
    }

    found = findings(logged)

    if run["onset"] is None:
        assert found == []
    else:
        assert any(abs((one.step or 0) - run["onset"]) <= 1 for one in found[:3])
