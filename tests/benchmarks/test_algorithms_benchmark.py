"""The benchmark of algorithms: its settings load, and its figures come from what runs logged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentrl.algorithms import ALGORITHMS as RECORDS
from agentrl.config.load import load_config
from agentrl.tools import ToolContext
from benchmarks.algorithms import (
    ALGORITHMS,
    AT,
    CONFIG,
    DAPO,
    JUDGED,
    RATES,
    SEEDS,
    TUNING_SEED,
    best_rate,
    quiet_run,
    report,
    run_of,
    settings_of,
    tuning_runs,
)
from benchmarks.algorithms_tool import python
from benchmarks.figures import Figures

pytestmark = pytest.mark.tooling


def test_every_algorithm_that_learns_from_rollouts_is_measured() -> None:
    measured = {
        settings[0].removeprefix("algorithm.name=") for settings in ALGORITHMS.values()
    }
    assert measured == {
        name
        for name, record in RECORDS.items()
        if record.settings.learns_from == "rollouts"
    }


@pytest.mark.parametrize("name", [*ALGORITHMS, *DAPO])
def test_the_settings_of_a_run_are_a_configuration_of_four_updates(
    name: str, tmp_path: Path
) -> None:
    given = settings_of(tmp_path, run_of(name, RATES[0], SEEDS[0]))
    config = load_config(CONFIG, given)
    rl = next(stage for stage in config.resolved_stages() if stage.name == "rl")
    rl.make_algorithm()
    assert rl.train.batch_prompts == 4 * rl.train.mini_batch_prompts
    assert rl.optim.lr == float(RATES[0])


def finished(
    folder: Path, name: str, rate: str, seed: int, accuracies: tuple[float, ...]
) -> None:
    run = folder / run_of(name, rate, seed).name
    run.mkdir(parents=True)
    rows = [{"step": step, "time/step_s": 2.0} for step in (1, 2)]
    rows += [
        {"step": step, "eval/code/sampled": value}
        for step, value in zip(AT, accuracies, strict=True)
    ]
    rows += [
        {"step": step, "critic/explained_variance": 0.1 * step} for step in (1, 2, 3, 4, 5)
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run / "summary.json").write_text("{}")


def test_figures_are_of_the_rate_that_is_better_on_the_tuning_seed(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    before = {"eval": {"code": {"before": {"sampled": 0.25}}}}
    (tmp_path / "warmup/summary.json").write_text(json.dumps(before))
    for name, worth in (("grpo", 0.8), ("gspo", 0.5), (JUDGED, 0.7)):
        *worse, rate = (run.rate for run in tuning_runs(name))
        for other in worse:
            finished(tmp_path, name, other, TUNING_SEED, (0.9, 0.1))
        finished(tmp_path, name, rate, TUNING_SEED, (0.1, 0.9))
        for seed in SEEDS:
            finished(tmp_path, name, rate, seed, (0.4, worth + 0.1 * (seed - 1)))
    made = tmp_path / run_of("grpo", RATES[1], SEEDS[0]).name
    shutil.copytree(made, tmp_path / quiet_run(tmp_path, "grpo").name)
    figures = Figures()

    report(figures, tmp_path, ["grpo", "gspo", JUDGED, "dapo"])

    assert best_rate(tmp_path, "grpo") == RATES[1]
    found = {row.name: (row.value, row.met) for row in figures.rows}
    assert found["grpo (0.0006, 3 of 3 seeds), accuracy at 50"] == (
        pytest.approx(0.8),
        None,
    )
    assert found["grpo (0.0006, 3 of 3 seeds), lowest at 50"] == (pytest.approx(0.7), None)
    assert found["grpo (0.0006, 3 of 3 seeds), a step alone"] == (2.0, None)
    gain = found["gspo (0.0006, 3 of 3 seeds), gain as a share of grpo's"]
    assert gain == (pytest.approx(0.25 / 0.55), False)
    assert found[f"{JUDGED}, seed 0, accuracy at 50"] == (pytest.approx(0.6), True)
    assert found[f"{JUDGED}, seed 0, explained variance"] == (pytest.approx(0.3), True)
    assert not any(name.startswith("dapo") for name in found)  # none of its runs is there


def test_variants_of_dapo_have_its_rate(tmp_path: Path) -> None:
    for rate, accuracy in zip(RATES, (0.9, 0.8), strict=True):
        finished(tmp_path, "dapo", rate, TUNING_SEED, (0.1, accuracy))
    assert {best_rate(tmp_path, name) for name in DAPO} == {RATES[0]}


def test_only_the_judged_runs_have_a_sandbox(tmp_path: Path) -> None:
    with_sandbox = {
        name
        for name in (*ALGORITHMS, *DAPO)
        if not any(
            "tools" in one for one in settings_of(tmp_path, run_of(name, RATES[0], 0))
        )
    }
    assert with_sandbox == {JUDGED}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(12*(3+4)-5)", "79"),
        ("print(10**99999999)", "Error:"),
        ("print(open('/etc/passwd'))", "Error:"),
        ("print(*[1])", "Error:"),
        ("print(1", "Error:"),
        ("import os", "Error:"),
    ],
)
async def test_the_tool_prints_arithmetic_alone(code: str, said: str) -> None:
    found = await python.call({"code": code}, ToolContext())
    assert found.content.startswith(said)
    assert (found.error is None) == (said == "79")
