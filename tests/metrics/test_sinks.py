"""Sinks beside ``metrics.jsonl``: whatever they do, no step waits for one or ends by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import StoreError
from agentrl.metrics import Sinks
from agentrl.metrics.outlets.courier import Courier, end_all
from agentrl.metrics.outlets.tensorboard_sink import TensorBoardSink
from agentrl.metrics.outlets.tracked_run import TrackedRun
from agentrl.metrics.timing import PhaseTimes
from agentrl.store import JsonlWriter, read_jsonl
from tests.kit.waiting import DEADLINE_S
from tests.metrics.recorded import RecordedSink, opener

Told = list[tuple[str, str]]


def keeping(told: Told) -> Callable[[str, str], None]:
    return lambda event, text: told.append((event, text))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(3)])
def test_a_sink_that_raises_is_told_once_and_tried_again_at_each_step(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    vital, failing, behind = RecordedSink(), RecordedSink(error, {1, 2, 4}), RecordedSink()
    told: Told = []
    others = {"metrics.a": opener(failing), "metrics.b": opener(behind)}
    with Sinks([vital], others, told=keeping(told), close_s=DEADLINE_S) as sinks:
        for step in range(1, 6):
            sinks.log(step, {"a": 1.0})
    assert (vital.kept, failing.kept, behind.kept) == (
        [1, 2, 3, 4, 5],
        [3, 5],
        [1, 2, 3, 4, 5],
    )
    assert vital.threads == {threading.current_thread().name}
    assert (failing.threads, behind.threads) == ({"metrics.a"}, {"metrics.b"})
    # it failed at step 1, went on at 3, and failed again at 4
    assert [event for event, _ in told] == ["sink_failed", "sink_failed"]
    assert [record.getMessage() for record in caplog.records] == [text for _, text in told]
    assert {record.__dict__["event"] for record in caplog.records} == {"sink_failed"}
    assert told[0][1].startswith(
        "metrics.a failed, and is tried again with what comes next: "
    )
    assert f"{type(error).__name__}: {error}" in told[0][1]


def test_a_sink_that_does_not_open_is_opened_again_at_the_next_step() -> None:
    sink, told = RecordedSink(), []
    answers = iter(
        [ConnectionRefusedError("refused"), ConnectionRefusedError("refused"), None]
    )
    opened = []

    def open_sink() -> RecordedSink:
        opened.append(None)
        if (error := next(answers)) is not None:
            raise error
        return sink

    # the first try is at the start, before any step
    with Sinks(
        [], {"metrics.a": open_sink}, told=keeping(told), close_s=DEADLINE_S
    ) as sinks:
        for step in range(1, 4):
            sinks.log(step, {})
    assert (sink.kept, sink.closed, len(opened)) == ([2, 3], False, 3)
    assert [event for event, _ in told] == ["sink_failed"]


@pytest.mark.parametrize("failed", [False, True])
def test_a_sink_is_closed_with_how_the_run_ended(failed: bool) -> None:
    vital, other = RecordedSink(), RecordedSink()

    def run() -> None:
        with Sinks([vital], {"metrics.a": opener(other)}, close_s=DEADLINE_S) as sinks:
            sinks.log(1, {})
            if failed:
                raise ZeroDivisionError

    if failed:
        with pytest.raises(ZeroDivisionError):
            run()
    else:
        run()
    assert (vital.closed, other.closed, other.kept) == (failed, failed, [1])


RANK = PhaseTimes("actor.update", 0.5, 0.9, "rank-0")


def test_times_go_with_the_step_that_they_are_of(tmp_path: Path) -> None:
    sink = RecordedSink()
    lines = JsonlWriter(tmp_path / "phases.jsonl")
    with Sinks([], {"metrics.a": opener(sink)}, phases=lines, close_s=DEADLINE_S) as sinks:
        sinks.log(0, {})  # an evaluation before the first step
        for step in (1, 2):
            sinks.take_times([PhaseTimes("step", step - 1.0, float(step)), RANK])
            sinks.log(step, {}, "rl")
    assert sink.times == [
        [],
        [("step", 0.0, 1.0, ""), RANK],
        [("step", 1.0, 2.0, ""), RANK],
    ]
    rows = list(read_jsonl(tmp_path / "phases.jsonl"))
    assert [(row["stage"], row["step"]) for row in rows] == [("rl", 1), ("rl", 2)]
    assert rows[1]["phases"] == [["step", 1.0, 2.0], list(RANK)]


def test_a_sink_that_never_opened_is_not_opened_to_be_closed() -> None:
    opened = []

    def open_sink() -> RecordedSink:
        opened.append(None)
        raise TimeoutError

    with Sinks([], {"metrics.a": open_sink}, close_s=DEADLINE_S):
        pass
    assert len(opened) == 1


def test_only_a_vital_sink_ends_a_run() -> None:
    with pytest.raises(OSError, match="no disk"):
        Sinks([RecordedSink(OSError("no disk"), {1})]).log(1, {})


def test_a_sink_that_blocks_stops_no_step_and_is_given_up_by_name() -> None:
    held = threading.Event()
    vital, blocked, told = RecordedSink(), RecordedSink(held=held), []
    others = {"metrics.slow": opener(blocked)}
    with Sinks([vital], others, told=keeping(told), close_s=0.0) as sinks:
        sinks.log(1, {})
        assert blocked.began.wait(DEADLINE_S)
        for step in (2, 3, 4):
            sinks.log(step, {})
    assert (vital.kept, vital.closed, blocked.kept) == ([1, 2, 3, 4], False, [])
    ((event, text),) = told
    assert event == "sink_behind"
    assert text.startswith(
        "metrics.slow does not end, and is given up: 3 deliveries are lost; "
    )
    # it holds up no exit either
    (thread,) = (one for one in threading.enumerate() if one.name == "metrics.slow")
    assert thread.daemon
    held.set()
    thread.join(DEADLINE_S)


def test_what_comes_while_the_queue_is_full_is_lost_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began, held = threading.Event(), threading.Event()
    got: list[int] = []
    told: Told = []

    def hold(_: object) -> None:
        began.set()
        held.wait()

    courier = Courier("metrics.slow", lambda: "outlet", keeping(told), capacity=3)
    courier.give(hold)
    assert began.wait(DEADLINE_S)
    for number in range(1, 7):
        courier.give(lambda _, number=number: got.append(number))
    ((event, text),) = told
    assert event == "sink_behind"
    assert text.startswith(
        "metrics.slow is 3 deliveries behind, and loses what comes until it goes on"
    )
    held.set()
    end_all([courier], lambda _: got.append(0), DEADLINE_S)
    assert got == [1, 2, 3, 0]
    assert told[1:] == [
        (
            "sink_behind",
            "metrics.slow was too slow: 3 deliveries are lost; the run directory has everything",
        )
    ]
    assert [record.getMessage() for record in caplog.records] == [text for _, text in told]


def test_an_event_that_the_disk_refuses_ends_no_sink(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(event: str, text: str) -> None:
        raise StoreError("the disk is full")

    sink = RecordedSink(OSError("once"), {1})
    with Sinks([], {"metrics.a": opener(sink)}, told=refused, close_s=DEADLINE_S) as sinks:
        sinks.log(1, {})
        sinks.log(2, {})
    assert sink.kept == [2]
    assert len(caplog.records) == 1


def tracked(
    root: Path, known: Mapping[str, tuple[int, Collection[str]]] | None = None
) -> TrackedRun:
    return TrackedRun(root, "0123456789abcdef", {}, lambda text: None, known or {})


def tensorboard(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_a_tensorboard_writer_that_broke_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    folder.write_text("in its way")  # a folder that cannot be made
    sink = TensorBoardSink(True, tracked(tmp_path))
    with pytest.raises(OSError, match="tensorboard"):
        sink.log(1, {"a": 1.0}, "rl")
    folder.unlink()
    sink.log(2, {"a": 2.0}, "rl")
    sink.close()
    found = tensorboard(tmp_path).Scalars("rl/a")
    assert [(point.step, point.value) for point in found] == [(2, 2.0)]


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    others = {"metrics.tensorboard": lambda: TensorBoardSink(True, tracked(tmp_path))}
    with Sinks([], others, verl_names=True, close_s=DEADLINE_S) as sinks:
        sinks.log(3, {"turns/mean": 2.5}, "grpo")

    (point,) = tensorboard(tmp_path).Scalars("grpo/turns/mean")
    assert (point.step, point.value) == (3, 2.5)
    assert tensorboard(tmp_path).Scalars("grpo/num_turns/mean")[0].value == 5.0


def test_a_step_that_an_earlier_attempt_told_is_not_told_again(tmp_path: Path) -> None:
    sink = TensorBoardSink(True, tracked(tmp_path, {"rl": (3, {"a"})}))
    for stage, step in [("warmup", 1), ("rl", 2), ("rl", 3), ("rl", 4)]:
        sink.log(step, {"a": 1.0}, stage)
    # an evaluation that the earlier attempt did not come to
    sink.log(3, {"a": 2.0, "b": 1.0, "eval/held_out/accuracy": 0.5}, "rl")
    sink.close()
    events = tensorboard(tmp_path)
    assert [point.step for point in events.Scalars("warmup/a")] == [1]
    assert [point.step for point in events.Scalars("rl/a")] == [4]
    assert [point.step for point in events.Scalars("rl/eval/held_out/accuracy")] == [3]
    assert "rl/b" not in events.Tags()["scalars"]
