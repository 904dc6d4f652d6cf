"""Steps in which nothing could be learned say so, and the summary counts them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentrl import EpisodeView
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from agentrl.store.annotations.annotation import LOSS_REASONS
from tests.run.tiny_run import train

QUICK = (
    "run.deterministic=false",
    "stages.warmup.steps=2",
    "stages.rl.steps=2",
    "stages.rl.eval.sets={}",
)


def constant(episode: EpisodeView) -> float:
    return 1.0


def shown(tmp_path: Path, *overrides: str, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    train(tmp_path, *QUICK, *overrides, reward=constant, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("kept", ["true", "false"], ids=["dropped", "trained"])
def test_a_step_of_equal_rewards_says_so_in_its_line(tmp_path: Path, kept: str) -> None:
    lines = shown(
        tmp_path,
        f"stages.rl.algorithm.filter_zero_variance={kept}",
        "stages.rl.rollout.max_resample_ratio=0.0",
        "health.window=2",
    )
    steps = [line for line in lines if line.lstrip().startswith(("1/2", "2/2"))]
    assert [line.endswith("no signal: 3 of 3 groups equal") for line in steps] == [
        False,
        False,
        True,
        True,
    ]
    assert "! 2 of 2 steps had no signal" in "\n".join(lines)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["steps_without_signal"]) == (2, 2)
    found = TrajectoryReader(RunDirectory.open(tmp_path / "run")).annotations(stage="rl")
    reasons = {reason for one in found for reason in one.arrays["loss_reason"].tolist()}
    assert {LOSS_REASONS[reason] for reason in reasons} == {
        "filtered" if kept == "true" else "trained"
    }

    # the alert comes with its evidence, on the terminal, in the events and in the log
    told = "step 2: no signal: 100% of the groups teach nothing, more than 90%"
    assert sum(told in line for line in lines) == 1
    (event,) = (
        one
        for one in read_jsonl(tmp_path / "run/events.jsonl")
        if one["event"] == "health_alert"
    )
    assert event["message"].startswith(told)
    assert (event["level"], event["stage"], event["step"]) == ("warning", "rl", 2)
    reader = TrajectoryReader(RunDirectory.open(tmp_path / "run"))
    shown_by = [reader.get(name).summary for name in event["trajectories"]]
    assert {(one.step, one.reward) for one in shown_by} == {(2, 1.0)}
    (record,) = (
        one
        for one in read_jsonl(tmp_path / "run/logs/driver.jsonl")
        if one.get("event") == "health_alert"
    )
    assert (record["alert"], record["metric"]) == ("no_signal", "group/no_signal_frac")


@pytest.mark.slow
def test_a_teacher_teaches_where_all_rewards_are_equal(tmp_path: Path) -> None:
    lines = shown(
        tmp_path,
        "stages.rl.algorithm.name=distillation",
        "stages.rl.reference.stage=warmup",
        "stages.rl.from=model",
        "stages.rl.steps=4",
        "health.window=2",
        "health.reward_stuck_steps=4",
    )
    assert not any("no signal" in line for line in lines)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["steps_without_signal"]) == (4, 0)
    events = [one["event"] for one in read_jsonl(tmp_path / "run/events.jsonl")]
    assert "health_alert" not in events
