"""``agentrl eval MODEL CONFIG`` plays held-out tasks with a real model and writes them to a
file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.run.eval_file import read_eval_file
from agentrl.types import load_object

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code"


@pytest.mark.slow
def test_a_model_folder_is_examined(
    agentrl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "eval.parquet"
    model.mkdir()
    load_object("warmup.py:build_model", EXAMPLE)(model)
    settings = [
        "placement.mode=inline",
        "eval.sets={held_out: {data: task.py:tasks, num_tasks: 3}}",
    ]
    tokens = [
        "eval",
        model,
        EXAMPLE / "config.yaml",
        *settings,
        "--set",
        "held_out",
        "--samples",
        "2",
    ]

    code, printed, _ = agentrl(*tokens, "--out", out, "--json")

    assert code == 0
    assert json.loads(printed)["sources"]["code"]["avg@2"]["num_tasks"] == 3
    evaluated = read_eval_file(out)
    assert [len(entry.trajectories) for entry in evaluated] == [2, 2, 2]
    assert all(trajectory.turns for entry in evaluated for trajectory in entry.trajectories)


@pytest.mark.slow
def test_each_set_is_played_with_its_own_settings(
    agentrl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "eval.parquet"
    model.mkdir()
    load_object("warmup.py:build_model", EXAMPLE)(model)
    sets = "{data: task.py:tasks, num_tasks: 2}, bare: {data: task.py:tasks, num_tasks: 2, tools: false}"  # noqa: E501
    cold = "cold: {data: task.py:tasks, num_tasks: 2, temperature: 0.25}"
    base = "base: {data: task.py:tasks, num_tasks: 2, baseline_only: true}"
    settings = [
        "placement.mode=inline",
        f"eval.sets={{plain: {sets}, {cold}, {base}}}",
    ]

    code, printed, _ = agentrl(
        "eval", model, EXAMPLE / "config.yaml", *settings, "--out", out, "--json"
    )

    assert code == 0
    evaluated = read_eval_file(out)
    temperatures: dict[str, set[float]] = {}
    for entry in evaluated:
        for turn in (
            turn for trajectory in entry.trajectories for turn in trajectory.turns
        ):
            assert turn.sampling is not None
            temperatures.setdefault(entry.task.data_source, set()).add(
                turn.sampling.temperature
            )
    # one source in several sets is told apart by the set; what is examined only before training is
    # left out
    assert temperatures == {"plain/code": {1.0}, "bare/code": {1.0}, "cold/code": {0.25}}
    assert json.loads(printed)["sources"].keys() >= temperatures.keys()
