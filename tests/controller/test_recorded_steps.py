"""Episodes lie under the step that they belong to, and are sealed with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.controller.evaluator import EvalPlan, EvalSet, Evaluation, RolloutEvaluator
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.metrics import PhaseTimer
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.store import EventLog, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import SamplingParams, Stats, Status, Task, Trajectory, TrajectoryGroup
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


def test_an_evaluator_asks_under_its_stage_and_the_label_is_the_same_in_each() -> None:
    asked: list[GroupRequest] = []

    def roll_out(requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        asked.extend(requests)
        return [outcome(request.group_index, request.label) for request in requests]

    plan = EvalPlan((EvalSet("sums", (TASK,)),), 1, SamplingParams(8))
    for stage in ("warmup", "rl"):
        list(RolloutEvaluator(plan, roll_out, stage).evaluate("before"))
    labels = ["sums/before/sampled", "sums/before/greedy"]
    assert [(one.stage, one.label) for one in asked] == [
        (stage, label) for stage in ("warmup", "rl") for label in labels
    ]
    assert len({one.key(0).trajectory_id for one in asked}) == 4
