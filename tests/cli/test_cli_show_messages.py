"""`agentrl show` of a turn that an engine without ids made, in a run that has a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.types import Message, Status, Task, Trajectory, Turn


@pytest.mark.usefixtures("tokenizer")
def test_a_turn_without_tokens_is_shown_by_its_messages(
    run_dir: Path, agentrl: Callable[..., tuple[int, str, str]]
) -> None:
    asked: Message = {"role": "user", "content": "how many"}
    said: Message = {"role": "assistant", "content": "forty two"}
    turn = Turn(0, None, (), (), "forty two", said, observed=(asked,))
    with TrajectoryWriter(RunDirectory.open(run_dir), "server") as writer:
        task = Task("calc-9", (asked,))
        writer.write(
            Trajectory(task, 9, 0, 0, "eval", (turn,), Status("terminated"), {}, 1.0),
            step=1,
        )
    code, shown, _ = agentrl("show", run_dir, "9-0-0")
    assert code == 0
    assert "user: how many" in shown
    assert "forty two" in shown


def test_what_a_request_asked_in_vain_and_how_its_answer_broke_a_demand_is_shown(
    run_dir: Path, agentrl: Callable[..., tuple[int, str, str]]
) -> None:
    said: Message = {"role": "assistant", "content": "no"}
    info = {
        "ignored": {"verbosity": "low", "seed": 3},
        "breaches": ["tool_choice is required, called no tool"],
    }
    turn = Turn(0, None, (), (), "no", said, info=info)
    with TrajectoryWriter(RunDirectory.open(run_dir), "server") as writer:
        writer.write(
            Trajectory(Task("t"), 9, 0, 0, "eval", (turn,), Status("terminated"), {}, 1.0),
            step=1,
        )
    _, shown, _ = agentrl("show", run_dir, "9-0-0")
    assert "breach > tool_choice is required, called no tool" in shown
    assert "ignored > verbosity low, seed 3" in shown
