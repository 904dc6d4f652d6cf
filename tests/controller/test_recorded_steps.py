"""Episodes lie under the step that they belong to, and are sealed with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl.controller.evaluator import EvalSet, Evaluation, RolloutEvaluator
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.metrics import PhaseTimer
from agentrl.metrics.health import Health
from agentrl.metrics.monitors import HealthSpec
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.store import (
    EventLog,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
    read_jsonl,
)
from agentrl.types import (
    SamplingParams,
    Segment,
    SegmentKind,
    Stats,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.types.loop_thread import LoopLag
from tests.controller.test_incidents import Rows, View

TASK = Task("t")


def outcome(index: int, label: str = "") -> GroupOutcome:
    purpose = "eval" if label else "train"
    ended = Status("terminated")
    played = Trajectory(
        TASK, index, 0, 0, purpose, (), label=label, status=ended, reward=1.0
    )
    request = GroupRequest(index, TASK, 1, purpose, label)
    return GroupOutcome(request, TrajectoryGroup(index, TASK, (played,)))


def test_an_evaluation_lies_under_the_step_whose_weights_it_evaluates(
    tmp_path: Path,
) -> None:
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
            recorder.record_step(TrainState(step=step), [], {}, Stats(), {})
        writer.flush()

        assert {one.id: one.step for one in TrajectoryReader(run).summaries()} == {
            "sums/before/greedy/0-0-0": 0,
            "1-0-0": 1,
            "2-0-0": 2,
            "sums/after/greedy/0-0-0": 2,
        }
        # all of it is sealed, while it runs
        assert not list(run.live_folder.glob("*/*.jsonl"))
    events.close()


def test_a_loop_that_stood_still_is_a_number_an_alert_and_the_line_that_kept_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    rows = Rows()
    with TrajectoryWriter(run) as writer, closing(EventLog(run)) as events:
        recorder = Recorder(
            "rl",
            writer=writer,
            events=events,
            sink=rows,
            view=View(),
            timer=PhaseTimer(),
            health=Health(HealthSpec()),
        )
        for lag in (LoopLag(0.25), LoopLag(4.5, "ask (worker.py:7)"), LoopLag(0.5)):
            recorder.record_outcome(replace(outcome(1), lag=lag))
        recorder.take_episodes()
        recorder.record_step(TrainState(step=1), [], {}, Stats(), {})
        writer.flush()

    (values,) = rows.rows
    assert values["perf/loop_lag_s"] == 4.5
    told = [
        r.getMessage()
        for r in caplog.records
        if "loop_blocked" in r.__dict__.get("event", "")
    ]
    assert ["ask (worker.py:7) keeps the event loop" in text for text in told] == [True]
    (alert,) = [r for r in read_jsonl(run.events_path) if r["event"] == "health_alert"]
    assert (alert["alert"], alert["value"]) == ("loop_blocked", 4.5)


def test_an_evaluator_asks_under_its_stage_and_the_label_is_the_same_in_each() -> None:
    asked: list[GroupRequest] = []

    def roll_out(requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        asked.extend(requests)
        return [outcome(request.group_index, request.label) for request in requests]

    sets = [EvalSet("sums", (TASK,))]
    for stage in ("warmup", "rl"):
        evaluator = RolloutEvaluator(
            sets, roll_out, samples=1, sampling=SamplingParams(8), stage=stage
        )
        list(evaluator.evaluate("before"))
    labels = ["sums/before/sampled", "sums/before/greedy"]
    assert [(one.stage, one.label) for one in asked] == [
        (stage, label) for stage in ("warmup", "rl") for label in labels
    ]
    assert len({one.key(0).trajectory_id for one in asked}) == 4


def test_an_episode_is_stored_when_it_ends_and_not_again_with_its_group(
    tmp_path: Path,
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    events = EventLog(run)
    ended = Status("terminated")
    first, second = (
        Trajectory(TASK, 1, n, 0, "train", (), status=ended, reward=1.0) for n in (0, 1)
    )
    failed = Trajectory(
        TASK, 2, 0, 0, "train", (), status=Status("failed", "env", "it broke")
    )
    stubs = tuple(
        Trajectory(TASK, 2, n, attempt, "train", (), status=Status("cancelled", "surplus"))
        for n, attempt in ((0, 1), (1, 0))
    )
    other = Trajectory(TASK, 2, 1, 0, "train", (), status=ended, reward=0.0)
    with TrajectoryWriter(run) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=Rows(), view=View(), timer=PhaseTimer()
        )
        recorder.record_ended(first)
        writer.flush()
        reader = TrajectoryReader(run)
        assert [(one.id, one.step) for one in reader.summaries()] == [("1-0-0", 1)]
        assert recorder.uncounted() == ()  # its group is in no step's metrics yet

        recorder.record_ended(failed)
        recorder.record_ended(other)
        whole = TrajectoryGroup(1, TASK, (first, second))
        recorder.record_outcome(GroupOutcome(GroupRequest(1, TASK, 2), whole))
        cancelled = TrajectoryGroup(2, TASK, stubs)
        request = GroupRequest(2, TASK, 2)
        recorder.record_outcome(GroupOutcome(request, cancelled, (failed,), ended=(other,)))
        writer.flush()
        assert {one.id: one.status for one in reader.summaries()} == {
            "1-0-0": "terminated",
            "1-1-0": "terminated",
            "2-0-0": "failed",
            "2-0-1": "cancelled",
            "2-1-0": "terminated",
        }
        assert writer.counts.written == 5
        assert recorder.uncounted() == (1, 2)
    events.close()
    assert [row["trajectory"] for row in read_jsonl(run.events_path)] == ["2-0-0"]


def played(
    index: int, *rewards: float, spans: Sequence[tuple[float, float]] = ()
) -> GroupOutcome:
    """A group that ended, each of whose rollouts sampled four tokens."""
    ids = np.arange(4, dtype=np.int32)
    logprobs = np.zeros(4, np.float32)
    turn = Turn(
        0,
        None,
        (),
        (Segment(SegmentKind.POLICY, ids, logprobs, 0),),
        "",
        {"role": "assistant"},
    )
    ended = tuple(
        Trajectory(
            TASK, index, n, 0, "train", (turn,), Status("terminated"), reward=reward,
            started_at=spans[n][0] if spans else 0.0, ended_at=spans[n][1] if spans else 0.0,
        )
        for n, reward in enumerate(rewards)
    )  # fmt: skip
    request = GroupRequest(index, TASK, len(rewards))
    return GroupOutcome(request, TrajectoryGroup(index, TASK, ended))


def test_the_metrics_of_a_step_are_of_what_it_trained(tmp_path: Path) -> None:
    """Groups 0 and 3 are trained in step 1, 4 and 5 in step 2; no batch has 1, 2 and 6."""
    run, rows = RunDirectory.create(tmp_path / "run"), Rows()
    events = EventLog(run)
    made = [
        played(3, 1.0, 0.0),
        played(1, 0.0, 0.0),  # equal rewards
        played(0, 0.5, 0.0),
        played(4, 1.0, 0.5),
        played(2, 1.0, 1.0),
        played(5, 1.0, 0.0),
        played(6, 0.0, 0.0),
    ]
    groups = {one.group.group_index: one.group for one in made}
    with TrajectoryWriter(run) as writer:

        def recorder() -> Recorder:
            return Recorder(
                "rl", writer=writer, events=events, sink=rows, view=View(), timer=PhaseTimer(),
                ahead=True,
            )  # fmt: skip

        first = recorder()
        for one in made[:5]:  # 4 and 2 end while the first batch is still played
            first.record_outcome(one)
        assert len(first.take_episodes([groups[0], groups[3]])) == 10
        first.record_outcome(made[5])
        first.record_step(TrainState(step=1), [groups[0], groups[3]], {}, Stats(), {})
        assert rows.rows[0]["reward/mean"] == (1.0 + 0.5) / 6
        assert rows.rows[0]["turns/mean"] == 1.0
        assert rows.rows[0]["count/groups"] == 3
        assert rows.rows[0]["ended/reward/mean"] == (1.0 + 0.5 + 1.5 + 2.0) / 10
        assert rows.rows[0]["ended/count/groups"] == 5

        # a resume knows of what waits; that 2 had equal rewards is gone with the process
        second = recorder()
        second.recall([groups[4], groups[5]], first.uncounted())
        second.record_outcome(made[6])
        assert len(second.take_episodes([groups[4], groups[5]])) == 4
        second.record_step(TrainState(step=2), [groups[4], groups[5]], {}, Stats(), {})
        assert rows.rows[1]["reward/mean"] == (1.5 + 1.0) / 4
        assert rows.rows[1]["ended/reward/mean"] == 1.0 / 4  # of 5 and 6
        events.close()


def test_a_group_that_waits_for_a_later_batch_counts_in_that_ones_metrics(
    tmp_path: Path,
) -> None:
    """Group 4 ends first, and waits while the batch takes 3 and 0, which must be trained first."""
    run, rows = RunDirectory.create(tmp_path / "run"), Rows()
    events = EventLog(run)
    made = [
        played(4, 1.0, 0.5),
        played(1, 0.0, 0.0),
        played(3, 1.0, 0.0),
        played(0, 0.5, 0.0),
    ]
    four, _, three, zero = (one.group for one in made)
    with TrajectoryWriter(run) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=rows, view=View(), timer=PhaseTimer(),
            ahead=True,
        )  # fmt: skip
        for one in made:
            recorder.record_outcome(one)
        recorder.take_episodes([three, zero], waiting={4})
        recorder.record_step(TrainState(step=1), [three, zero], {}, Stats(), {})
        recorder.take_episodes([four])
        recorder.record_step(TrainState(step=2), [four], {}, Stats(), {})
    events.close()
    assert [row["reward/mean"] for row in rows.rows] == [(1.0 + 0.5) / 6, (1.0 + 0.5) / 2]
    assert [row["count/groups"] for row in rows.rows] == [3, 1]


def test_a_batch_of_no_group_counts_all_that_ended(tmp_path: Path) -> None:
    run, rows = RunDirectory.create(tmp_path / "run"), Rows()
    events = EventLog(run)
    with TrajectoryWriter(run) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=rows, view=View(), timer=PhaseTimer(),
            ahead=True,
        )  # fmt: skip
        recorder.record_outcome(played(0, 1.0, 1.0))
        recorder.take_episodes([])
        recorder.record_step(TrainState(step=1), [], {}, Stats(), {})
    events.close()
    assert rows.rows[0]["reward/mean"] == 1.0


def test_a_step_has_the_most_groups_that_waited_and_calls_that_ran_on(
    tmp_path: Path,
) -> None:
    run, rows = RunDirectory.create(tmp_path / "run"), Rows()
    events = EventLog(run)
    with TrajectoryWriter(run) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=rows, view=View(), timer=PhaseTimer()
        )
        for group_index, most in enumerate((1, 4, 2)):
            outcome = replace(played(group_index, 1.0), unscored=most, abandoned=most + 1)
            recorder.record_outcome(outcome)
        recorder.take_episodes()
        recorder.record_step(TrainState(step=1), [], {}, Stats(), {})
    events.close()
    assert rows.rows[0]["perf/unscored_groups"] == 4.0
    assert rows.rows[0]["perf/abandoned_calls"] == 5.0
