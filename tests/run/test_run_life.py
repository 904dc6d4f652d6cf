"""What a run leaves for who reads it later: that it lived and ended, its tokenizers, its index."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from agentrl.controller.stop_request import StopRequest
from agentrl.errors import HeldError, RunInterruptedError
from agentrl.metrics import StepDisplay
from agentrl.run.lifetime.interruption import Interruption
from agentrl.store import EventLog, Heartbeat, RunDirectory, RunWatch
from agentrl.viewer.index import RunIndex
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.comparisons import retokenised
from tests.kit.held_name import held_elsewhere
from tests.run.tiny_run import CONFIG, train

SHORT = (
    "stages.rl.steps=1",
    "stages.warmup.steps=1",
    "stages.rl.eval={}",
)


def assert_tokens_can_be_read_again(run: RunDirectory) -> None:
    """Each sampled token has the five likeliest ones, and the tools that stood in the prompt are
    kept, so that the template applied anew gives the recorded ids.
    """
    opened = OpenRun(run, "key", "run")
    for summary in opened.reader.summaries():
        assert summary.stage == "rl"
        row = opened.row(summary.id)
        found = row.alternatives
        assert found is not None
        assert found.positions.tolist() == row.policy_positions.tolist()
        assert found.ids.shape[1] == 5
        own = row.arrays.logprobs[found.positions]
        same = found.ids == row.arrays.token_ids[found.positions, None]
        np.testing.assert_allclose(
            found.logprobs[same], own[same.any(1)], atol=1e-4, rtol=1e-3
        )
        assert (1.001 * own[~same.any(1)] <= found.logprobs[~same.any(1), -1]).all()
        first = retokenised(opened, summary.id, 0)["template"]
        assert (first["equal"], first["missing"]) == (True, "")
    turn = opened.trajectory(summary.id).turns[0]
    assert turn.offered_tools is not None
    (add,) = json.loads(run.read_blob(turn.offered_tools.sha256))
    assert add["function"]["name"] == "add"
    assert set(add["function"]["parameters"]["properties"]) == {"a", "b"}


@pytest.mark.slow
def test_a_run_says_that_it_ended_and_keeps_the_tokenizer_of_each_stage(
    trained: RunDirectory, tmp_path: Path
) -> None:
    run = trained
    state = RunWatch(run).look()
    assert state.kind == "finished"
    assert state.heartbeat is not None
    assert (state.heartbeat["stage"], state.heartbeat["step"]) == ("rl", 2)
    kept = run.read_record()["tokenizers"]
    assert set(kept) == {"warmup", "rl"}
    start = run.models_folder / "start" / "tokenizer.json"
    assert run.read_blob(kept["rl"]["tokenizer.json"]) == start.read_bytes()
    assert_tokens_can_be_read_again(run)
    with RunIndex(run, tmp_path / "cache") as index:
        index.refresh()
        first = index.page("trained_step:1")
        assert first.total > 0
        assert all(row["stage"] == "rl" and not row["drop"] for row in first.rows)


def test_the_command_that_goes_on_is_one_line_of_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    words = [
        "config.yaml",
        f"run.dir={run.root}",
        *(f"stages.rl.steps={n}" for n in range(9)),
    ]
    monkeypatch.setattr(sys, "argv", ["agentrl", "train", *words])
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, no_color=True)
    with closing(EventLog(run)) as events, StepDisplay(console, run.root) as display:
        told = Interruption(StopRequest(), run, (), display, events).tell(
            KeyboardInterrupt()
        )
    assert f"\n`agentrl train {' '.join(words)} --resume`\n" in shown.getvalue()
    assert str(told).endswith(" --resume`")


@pytest.mark.slow
def test_a_signal_before_the_first_stage_says_how_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Heartbeat.__enter__

    def interrupted(self: Heartbeat) -> Heartbeat:
        os.kill(os.getpid(), signal.SIGTERM)
        return begin(self)

    monkeypatch.setattr(Heartbeat, "__enter__", interrupted)
    told = "interrupted by SIGTERM; it has no checkpoint yet; go on with: "
    with pytest.raises(RunInterruptedError, match=told):
        train(tmp_path, *SHORT)
    record = tmp_path / "run" / "run.json"
    assert json.loads(record.read_text())["interrupted"]["by"] == "SIGTERM"
    monkeypatch.undo()
    train(tmp_path, *SHORT, resume=True)
    assert "interrupted" not in json.loads(record.read_text())


def test_a_run_that_another_process_trains_is_left_as_it_is(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {"seed": 0}, CONFIG)
    with held_elsewhere(run.root / "run.lock") as holder:
        before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
        told = rf"{run.root}/run\.lock is held by another process \({holder} on .*end it first, or"
        with pytest.raises(HeldError, match=told):
            train(tmp_path, resume=True)
        after = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
        assert after == before
    with run.held():  # a process that was killed holds nothing
        pass
