"""Outlets of a run: what is missing is told at the start, and what they are told of the run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.cli.main import run as run_command_line
from agentrl.config.load import load_config
from agentrl.controller.ledger import Ledger
from agentrl.errors import ConfigError
from agentrl.metrics import StepDisplay
from agentrl.metrics.metrics_spec import MetricsSpec
from agentrl.run.lifetime.outlets import check_outlets, tracked_run
from agentrl.run.run_setup import roll_back
from agentrl.store import EventLog, JsonlWriter, RunDirectory, read_jsonl
from tests.run.tiny_run import train

SHORT = ("stages.warmup.steps=1", "stages.rl.steps=2", "stages.rl.eval.sets={}")


MINIMAL: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "task.py:tasks"}}


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outlets = [name for name in sys.modules if name.startswith("agentrl.metrics.outlets.")]
    for module in [name for name in sys.modules if name.split(".")[0] == package] + outlets:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]


def test_a_missing_package_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("wandb", monkeypatch)
    told = r"metrics.wandb needs a package .*; `pip install 'wandb>=0\.31'`"
    with pytest.raises(ConfigError, match=told):
        train(tmp_path, *SHORT, "metrics.wandb.project=p")
    assert not (tmp_path / "run").exists()
    config = tmp_path / "config.yaml"
    assert run_command_line(["check", str(config), "metrics.wandb.project=p"]) == 2
    assert "pip install 'wandb>=0.31'" in " ".join(capsys.readouterr().err.split())


MISSING = {
    "tensorboard": ("tensorboard", "'tensorboard>=2.18'"),
    "wandb": ("wandb", "'wandb>=0.31'"),
    "trackio": ("trackio", "'trackio>=0.43'"),
    "mlflow": ("mlflow", "'mlflow-skinny>=3.0'"),
    "prometheus": ("prometheus_client", "'prometheus-client>=0.20'"),
    "opentelemetry": (
        "opentelemetry",
        "'opentelemetry-api>=1.30' 'opentelemetry-sdk>=1.30'",
    ),
}
"""The package of each outlet, and how its extra is told."""
ON: dict[str, Any] = {
    "tensorboard": True,
    "wandb": {"project": "p"},
    "trackio": {"project": "p"},
    "mlflow": {"experiment": "e"},
    "prometheus": {"port": 0},
    "opentelemetry": {"endpoint": "http://127.0.0.1:4318/v1/traces"},
}


@pytest.mark.parametrize("name", MISSING)
def test_each_package_is_told_with_the_command_that_brings_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, told = MISSING[name]
    without(package, monkeypatch)
    config = load_config({**MINIMAL, "metrics": {name: ON[name]}})
    with pytest.raises(ConfigError) as caught:
        check_outlets(config, config.resolved_stages())
    assert str(caught.value).startswith(
        f"metrics.{name} needs a package that cannot be imported: "
    )
    assert f"; `pip install {told}" in str(caught.value)


def test_nothing_is_needed_for_what_is_not_asked() -> None:
    assert MetricsSpec().asked == []
    assert MetricsSpec.model_validate(ON).asked == list(MISSING)
    config = load_config(MINIMAL)
    check_outlets(config, config.resolved_stages())


def test_what_an_attempt_told_is_known_after_every_later_resume(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", {"id": "0123456789abcdef"})
    config = load_config(MINIMAL)
    stages = config.resolved_stages()
    display = StepDisplay(Console(quiet=True), tmp_path)

    def attempt(steps: Iterable[int], **further: float) -> Mapping[str, Any]:
        with closing(EventLog(directory)) as events:
            known = tracked_run(config, stages, directory, events, display).known
        with closing(Ledger(directory.ledger_path)) as ledger:
            roll_back(directory, stages, ledger, known)
        with closing(JsonlWriter(directory.metrics_path)) as lines:
            for step in steps:
                lines.append(
                    {"step": step, "stage": "main", "time": 0.0, "a": 1.0} | further
                )
        return {
            stage: (step, set(names) - {"time"}) for stage, (step, names) in known.items()
        }

    # there is no checkpoint: each resume takes all rows out
    told = {"step", "stage", "a"}
    assert attempt(range(1, 11)) == {}
    assert attempt(range(1, 8)) == {"main": (10, told)}
    assert attempt(range(1, 9)) == {"main": (10, told)}
    assert attempt(range(1, 11), **{"eval/held_out/accuracy": 1.0}) == {"main": (10, told)}
    assert attempt(range(1, 13)) == {"main": (10, told | {"eval/held_out/accuracy"})}
    assert attempt(()) == {"main": (12, told)}


@pytest.mark.slow
def test_a_resumed_run_tells_tensorboard_each_step_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    on = ("metrics.tensorboard=true", "checkpoint.every=2")
    run = train(tmp_path, *SHORT, *on, "stages.rl.steps=4")
    first = RunDirectory(run).read_record()["id"]
    # as after a death in the fourth step, and one in the third that is played again
    for lost, steps in ((4, 3), (3, 5)):
        (last,) = RunDirectory(run).checkpoints_folder.glob(f"rl/step={lost:06}")
        last.rename(tmp_path / f"elsewhere-{lost}")
        train(tmp_path, *SHORT, *on, f"stages.rl.steps={steps}", resume=True)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("rl/reward/mean")] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip
    assert RunDirectory(run).read_record()["id"] == first


@pytest.mark.slow
def test_a_sink_that_fails_at_every_step_is_told_once_and_the_run_ends_well(
    tmp_path: Path,
) -> None:
    run = train(tmp_path, *SHORT, "stages.rl.steps=1")
    (run / "tensorboard").write_text("in its way")
    train(tmp_path, *SHORT, "stages.rl.steps=4", "metrics.tensorboard=true", resume=True)
    events = list(read_jsonl(run / "events.jsonl"))
    (failed,) = (one for one in events if one["event"].startswith("sink_"))
    assert failed["message"].startswith(
        "metrics.tensorboard failed, and is tried again with what"
    )
    assert (failed["event"], failed["boundary"]) == ("sink_failed", "metrics")
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"] == [
        1, 2, 3, 4,
    ]  # fmt: skip
    assert events[-1]["event"] == "run_completed"


@pytest.mark.slow
def test_each_run_has_an_id_of_its_own_and_tells_its_end(tmp_path: Path) -> None:
    runs = [RunDirectory(train(tmp_path, *SHORT, name=name)) for name in ("a", "b")]
    first, second = (run.read_record()["id"] for run in runs)
    assert (len(first), len(second), first != second) == (16, 16, True)
    last = list(read_jsonl(runs[0].events_path))[-1]
    assert (last["event"], last["level"], last["boundary"]) == (
        "run_completed",
        "info",
        "run",
    )
