"""What a resumed run may change, what is kept of it, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config, load_with_origins
from agentrl.errors import ConfigError
from agentrl.run.trainer import Trainer
from agentrl.store import write_json
from tests.kit.forks import finish
from tests.run.tiny_run import CONFIG, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died in its second stage, after that one's first checkpoint; the first stage is
    finished.
    """
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    driver = start(
        folder / "config.yaml",
        folder / "run",
        die_at="agentrl.controller.stage.stage_run:StageRun.record",
        call=15,
    )
    finish(driver, -signal.SIGKILL)
    assert list((folder / "run" / "checkpoints" / "rl").glob("*/manifest.json"))
    return folder


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "copy")
    return tmp_path / "copy" / "run"


def resume(run: Path, *overrides: str, steps: int | None = None) -> None:
    config = load_config(run.parent / "config.yaml", [f"run.dir={run}", *overrides])
    with Trainer(config) as trainer:
        trainer.train(steps, resume=True)


def refusals(run: Path, *overrides: str) -> list[str]:
    before = (run / "config.resolved.yaml").read_bytes(), (run / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="cannot go on with these settings") as caught:
        resume(run, *overrides)
    assert (
        (run / "config.resolved.yaml").read_bytes(),
        (run / "run.json").read_bytes(),
    ) == before
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def record(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


def test_changed_settings_are_what_runs_and_what_is_written(run: Path) -> None:
    was = (run / "config.resolved.yaml").read_text()
    resume(
        run,
        "optim.lr=5.0e-4",
        "stages.warmup.optim.lr=0.5",
        "rollout.max_retries=1",
        "stages.rl.steps=6",
    )

    (entry,) = record(run)["resumed"]
    assert entry["changed"]["stages.rl.optim.lr"] == [1.0e-3, 5.0e-4]
    assert entry["changed"]["stages.rl.train.steps"] == [5, 6]
    assert entry["changed"]["stages.rl.rollout.max_retries"] == [2, 1]
    # finished: it stays as it ran
    assert entry["without_effect"]["stages.warmup.optim.lr"] == [
        1.0e-2,
        0.5,
    ]
    assert (run / entry["config_before"]).read_text() == was
    warmup, rl = load_config(run / "config.resolved.yaml").resolved_stages()
    assert (rl.optim.lr, rl.train.steps, rl.rollout.max_retries) == (5.0e-4, 6, 1)
    assert warmup.optim.lr == 1.0e-2
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [row["optim/lr"] for row in rows if row["stage"] == "rl" and "optim/lr" in row]
    assert rates == [1.0e-3, 1.0e-3, *[5.0e-4] * 4]


def test_where_settings_were_written_is_that_of_what_runs(run: Path) -> None:
    config = run.parent / "config.yaml"
    known = {"stages.warmup.optim.lr": "old.yaml:1:1", "stages.rl.optim.lr": "old.yaml:2:2"}
    write_json(run / "run.json", {**record(run), "sources": known})
    loaded = load_with_origins(config, [f"run.dir={run}", "stages.rl.optim.lr=5.0e-4"])
    with Trainer(loaded) as trainer:
        trainer.train(resume=True)
    sources = record(run)["sources"]
    assert sources["stages.rl.optim.lr"] == "command line: stages.rl.optim.lr=5.0e-4"
    # finished: it stays as it ran
    assert sources["stages.warmup.optim.lr"] == "old.yaml:1:1"
    assert sources["stages.rl.train.steps"].startswith(f"{config}:")


def test_steps_given_from_python_are_written_too(run: Path) -> None:
    resume(run, steps=4)
    assert record(run)["resumed"][0]["changed"] == {"stages.rl.train.steps": [5, 4]}
    assert load_config(run / "config.resolved.yaml").resolved_stages()[-1].train.steps == 4


def test_an_unchanged_resume_is_recorded_and_keeps_the_one_file(run: Path) -> None:
    resume(run)
    (entry,) = record(run)["resumed"]
    assert (entry["changed"], entry["without_effect"]) == ({}, {})
    assert [path.name for path in run.glob("config.resolved*")] == ["config.resolved.yaml"]


def test_what_a_run_keeps_for_good_is_refused_all_at_once(run: Path) -> None:
    found = refusals(
        run,
        "run.seed=3",
        "model.build_args={size: 1}",
        "run.replay=runs/earlier",
        "stages.rl.data.args={num_tasks: 5}",
        "stages.rl.data.sampler=signal",
        "stages.rl.optim.name=muon",
        # what steps have made of the one belongs to the other
        "stages.rl.algorithm={name: grpo, kl_coef: 0.02, kl_target: 0.1}",
    )
    assert [line.split(" must stay")[0] for line in found] == [
        "run.seed",
        "run.replay",
        "model.build_args",
        "stages.rl.data.args",
        "stages.rl.data.sampler.name",
        "stages.rl.optim.name",
        "stages.rl.algorithm.kl_coef",
        "stages.rl.algorithm.kl_target",
    ]
    assert (
        "run.seed must stay 0 for the whole run, got 3; set it back, or start a new run with "
        "another run.dir" in found[0]
    )


def test_stages_that_have_run_cannot_be_others(run: Path) -> None:
    assert refusals(run, "stages.0.name=cold")[0].startswith(
        "stages must begin with warmup, rl, which have run, got cold"
    )


def test_another_stage_may_follow(run: Path) -> None:
    text = (run.parent / "config.yaml").read_text() + "  - {name: more, steps: 1}\n"
    (run.parent / "config.yaml").write_text(text)
    resume(run)
    assert (run / "models" / "more").is_dir()
    assert [
        stage.name for stage in load_config(run / "config.resolved.yaml").resolved_stages()
    ][-1] == "more"


def test_other_tasks_under_the_same_name_are_refused(run: Path) -> None:
    kept = record(run)
    kept["data"]["rl/train"] = "0" * 64
    (run / "run.json").write_text(json.dumps(kept))
    assert (
        "stages.rl.data.train must give the same tasks as when the stage began"
        in refusals(run)[0]
    )
