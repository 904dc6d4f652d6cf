"""The parts of benchmarks/step.py that compute."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

import pytest

from agentrl.config import load_config
from agentrl.types import load_object
from benchmarks.calculator.arithmetic import evaluate
from benchmarks.figures import Figures
from benchmarks.step import (
    CALCULATOR,
    Side,
    TRLSide,
    compare,
    compare_checkouts,
    median_of,
    trl_python,
    write_tasks,
)

pytestmark = pytest.mark.tooling


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*34", "408"),
        ("(2 + 3)*4", "20"),
        ("2*215+4*87", "778"),
        ("-7 - -9", "2"),
        (" 5 ", "5"),
    ],
)
def test_calc_evaluates_arithmetic(expression: str, value: str) -> None:
    assert evaluate(expression) == value
    assert load_object("task.py:evaluate", CALCULATOR)(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "1/2", "2**9", "print(1)", "a*2", "1.5+1", "True+1", "9" * 41, "(" * 500, "1 +"],
)
def test_calc_refuses_everything_else(expression: str) -> None:
    with pytest.raises(ValueError, match=r"expression|understood|digits"):
        evaluate(expression)


def test_a_demonstration_that_calls_answers_what_calc_says() -> None:
    for row in islice(load_object("task.py:demonstrations", CALCULATOR)(0), 50):
        messages = row["messages"]
        if len(messages) == 2:
            continue
        arguments = messages[1]["tool_calls"][0]["function"]["arguments"]
        expression = (json.loads(arguments) if isinstance(arguments, str) else arguments)[
            "expression"
        ]
        assert messages[2]["content"] == messages[3]["content"] == evaluate(expression)


def test_the_cold_step_of_each_block_does_not_count() -> None:
    side = Side()
    side.add_block([{"s": 90.0}, {"s": 1.0}, {"s": 3.0}])
    side.add_block([{"s": 80.0}, {"s": 2.0}])

    assert [row["s"] for row in side.rows] == [1.0, 3.0, 2.0]
    assert median_of(side.rows, "s") == 2.0


def test_a_number_that_some_steps_lack_is_the_median_of_the_others() -> None:
    assert median_of([{"a": 1.0}, {}, {"a": 5.0}], "a") == 3.0
    assert median_of([{"a": 1.0}], "b") == 0.0


def test_the_ratio_is_theirs_over_ours() -> None:
    ours, theirs = Side(), Side()
    ours.rows = [{"time/step_s": 2.0, "count/trained_tokens": 3000.0}]
    theirs.rows = [{"step_s": 5.0, "completions/mean_length": 25.0}]
    figures = Figures()
    compare(figures, ours, theirs)

    found = {row.name: row for row in figures.rows}
    ratio = found["calculator: TRL's step over agentrl's"]
    assert (ratio.value, ratio.met) == (2.5, True)
    assert found["calculator: trained tokens a step, TRL"].value == 128 * 25


def test_checkouts_are_compared_step_by_step() -> None:
    played = {"count/trajectories": 4, "driver_cpu_s": 0.02}
    ours = Side(
        [
            {"time/step_s": 2.0, "count/trained_tokens": 7} | played,
            {"time/step_s": 8.0} | played,
        ]
    )
    slower = {"count/trajectories": 2, "driver_cpu_s": 0.08}
    other = Side(
        [
            {"time/step_s": 1.0, "count/trained_tokens": 6} | slower,
            {"time/step_s": 10.0} | played,
        ]
    )
    figures = Figures()
    compare_checkouts(figures, "code", ours, other)

    found = {row.name: row for row in figures.rows}
    ratio = found["code: a step over the other checkout's"]
    assert (ratio.value, ratio.met) == (pytest.approx((2.0 + 0.8) / 2), False)
    assert (
        found["code: share of steps that train as many tokens on both sides"].value == 0.5
    )
    assert found["code: driver's time a trajectory"].value == pytest.approx(1000 * 0.04 / 8)
    driver = found["code: driver's time over the other checkout's"]
    assert (driver.value, driver.met) == (pytest.approx((0.04 / 8) / (0.1 / 6)), True)
    with pytest.raises(ValueError, match="shorter"):
        compare_checkouts(figures, "code", ours, Side(other.rows[:1]))


def test_without_trls_environment_the_benchmark_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"make it: python -m benchmarks\.step --setup"):
        trl_python(tmp_path)


@pytest.mark.slow
def test_both_sides_have_the_same_settings(tmp_path: Path) -> None:
    from benchmarks.calculator import trl_side

    ours = load_config(CALCULATOR / "config.yaml").resolved_stages()[-1]
    arguments = argparse.Namespace(
        out=tmp_path,
        seed=0,
        micro_batch=128,
        cache=None,
        continuous_batching=False,
        threads=1,
    )
    theirs = trl_side.settings(arguments)

    assert theirs.num_generations == ours.rollout.group_size
    assert (
        theirs.generation_batch_size == ours.train.batch_prompts * ours.rollout.group_size
    )
    assert theirs.max_tool_calling_iterations + 1 == ours.rollout.max_turns
    assert theirs.generation_kwargs == {"max_new_tokens": ours.rollout.max_turn_tokens}
    assert theirs.max_completion_length == ours.rollout.max_response_tokens
    assert theirs.learning_rate == ours.optim.lr
    assert (theirs.adam_beta1, theirs.adam_beta2) == tuple(ours.optim.betas)
    assert theirs.max_grad_norm == ours.optim.clip_grad_norm
    assert not theirs.bf16
    assert ours.dtype == "float32"


@pytest.mark.slow
def test_trls_side_takes_as_many_steps_as_it_is_asked_for(tmp_path: Path) -> None:
    load_object("task.py:build_model", CALCULATOR)(str(tmp_path / "model"))
    tasks = write_tasks(tmp_path / "tasks.jsonl", seed=0)

    with TRLSide(
        Path(sys.executable), tmp_path / "model", tasks, tmp_path / "out", threads=1, seed=0
    ) as trl:
        blocks = [trl.block(1), trl.block(2)]

    assert [len(rows) for rows in blocks] == [1, 2]
    assert all(
        row["step_s"] > 0 and row["completions/mean_length"] > 0
        for rows in blocks
        for row in rows
    )
