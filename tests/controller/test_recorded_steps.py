"""Episodes lie under the step that they belong to, and are sealed with it."""

from __future__ import annotations

from pathlib import Path

from agentrl.controller.evaluator import Evaluation
from agentrl.controller.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.metrics import PhaseTimer
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.store import EventLog, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Stats, Status, Task, Trajectory, TrajectoryGroup
from tests.controller.test_incidents import Rows, View

TASK = Task("t")


def outcome(index: int, label: str = "") -> GroupOutcome:
    purpose = "eval" if label else "train"
    ended = Status("terminated")
    played = Trajectory(TASK, index, 0, 0, purpose, (), label=label, status=ended, reward=1.0)
    request = GroupRequest(index, TASK, 1, purpose, label)
    return GroupOutcome(request, TrajectoryGroup(index, TASK, (played,)))


def test_an_evaluation_lies_under_the_step_whose_weights_it_evaluates(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    events = EventLog(run)
    with TrajectoryWriter(run) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=Rows(), view=View(), timer=PhaseTimer()
        )
        recorder.evaluating("before", 0)
        recorder.record_outcome(outcome(0, "sums/before/greedy"))
        before = Evaluation("sums", "before", 1, {"greedy": 1.0})
        recorder.record_evaluation(before, TrainState())

        for step in (1, 2):
            recorder.record_outcome(outcome(step))
            recorder.take_episodes()
            if step == 2:  # as the loop does: after the update, before the step's row
                recorder.evaluating("after", step)
                recorder.record_outcome(outcome(0, "sums/after/greedy"))
                after = Evaluation("sums", "after", 1, {"greedy": 1.0})
                recorder.record_evaluation(after, TrainState(step=step))
            recorder.record_step(TrainState(step=step), [], None, Stats(), {})
        writer.flush()

        assert {one.id: one.step for one in TrajectoryReader(run).summaries()} == {
            "sums/before/greedy/0-0-0": 0,
            "1-0-0": 1,
            "2-0-0": 2,
            "sums/after/greedy/0-0-0": 2,
        }
        assert not list(run.live_folder.glob("*/*.jsonl"))  # all of it is sealed, while it runs
    events.close()
