"""Where the numbers go, and seconds by phase."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.metrics import JsonlSink, PhaseTimer, Sinks, TensorBoardSink, tokens_per_s
from agentrl.store import JsonlWriter


def test_one_line_a_step(tmp_path: Path) -> None:
    sink = JsonlSink(JsonlWriter(tmp_path / "metrics.jsonl"))
    before = time.time()
    sink.log(1, {"reward/mean": 0.5}, "grpo")
    sink.log(2, {"reward/mean": 0.75}, "grpo")
    sink.close()

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, second = (line.pop("time") for line in lines)
    assert before <= first <= second <= time.time()
    assert lines == [
        {"step": 1, "stage": "grpo", "reward/mean": 0.5},
        {"step": 2, "stage": "grpo", "reward/mean": 0.75},
    ]


def test_what_is_not_finite_is_null_and_counted(tmp_path: Path) -> None:
    sink = JsonlSink(JsonlWriter(tmp_path / "metrics.jsonl"))
    sink.log(1, {"a": math.nan, "b": 1.0, "c": -math.inf})
    sink.close()

    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    del line["time"]
    assert line == {
        "step": 1,
        "stage": "",
        "a": None,
        "b": 1.0,
        "c": None,
        "nonfinite": 2,
    }


def test_a_float_is_written_to_its_last_digit(tmp_path: Path) -> None:
    sink = JsonlSink(JsonlWriter(tmp_path / "metrics.jsonl"))
    sink.log(1, {"a": 0.1 + 0.2})
    sink.close()

    assert json.loads((tmp_path / "metrics.jsonl").read_text())["a"] == 0.1 + 0.2


class Lost:
    """A sink that keeps nothing."""

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Failing(Lost):
    """A sink that fails at given steps.

    Args:
        error: what it raises.
        steps: at which.
    """

    def __init__(self, error: BaseException, steps: Sequence[int]) -> None:
        self._error = error
        self._steps = steps
        self.kept: list[int] = []

    def log(self, step: int, values: Mapping[str, float], prefix: str = "") -> None:
        """Keeps the step, or raises."""
        if step in self._steps:
            raise self._error
        self.kept.append(step)

    def close(self) -> None:
        """Raises."""
        raise self._error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(3)])
def test_a_sink_that_fails_is_told_once_and_tried_again_at_each_step(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    vital, failing, behind = Failing(error, []), Failing(error, [1, 2, 4]), Failing(error, [])
    told: list[str] = []
    sinks = Sinks(vital, [failing, behind], told=told.append)
    for step in range(1, 6):
        sinks.log(step, {"a": 1.0})
    assert (vital.kept, failing.kept, behind.kept) == ([1, 2, 3, 4, 5], [3, 5], [1, 2, 3, 4, 5])
    # it failed at step 1, went on at 3, and failed again at 4
    assert [record.getMessage() for record in caplog.records] == told
    assert {record.__dict__["event"] for record in caplog.records} == {"sink_failed"}
    assert len(told) == 2
    assert told[0].startswith("Failing failed, and is tried again at each step: ")
    assert f"{type(error).__name__}: {error}" in told[0]


def test_only_the_vital_sink_ends_a_run() -> None:
    with pytest.raises(OSError, match="no disk"):
        Sinks(Failing(OSError("no disk"), [1])).log(1, {})


def test_a_tensorboard_writer_that_broke_is_opened_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "events"
    folder.write_text("in its way")  # a folder that cannot be made
    sinks = Sinks(Lost(), [TensorBoardSink(folder)])
    sinks.log(1, {"a": 1.0})
    folder.unlink()
    sinks.log(2, {"a": 2.0})
    sinks.close()

    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("a")] == [(2, 2.0)]


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sinks = Sinks(Lost(), [TensorBoardSink(tmp_path)], verl_names=True)
    sinks.log(3, {"turns/mean": 2.5}, "grpo")
    sinks.close()

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (point,) = events.Scalars("grpo/turns/mean")
    assert (point.step, point.value) == (3, 2.5)
    assert events.Scalars("grpo/num_turns/mean")[0].value == 5.0


def test_a_missing_tensorboard_is_said_with_its_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # type: ignore[arg-type]

    with pytest.raises(
        ConfigError, match=r"metrics.tensorboard needs .* pip install 'tensorboard>=2\.18'"
    ):
        TensorBoardSink(tmp_path)


def test_seconds_by_phase() -> None:
    now = iter([0.0, 2.0, 2.0, 5.0, 5.0, 6.0])
    timer = PhaseTimer(lambda: next(now))
    with timer.phase("rollout"):
        pass
    with timer.phase("update"):
        pass
    assert timer.take_step() == {"time/rollout_s": 2.0, "time/update_s": 3.0}
    with timer.phase("rollout"):
        pass

    assert timer.take_step() == {"time/rollout_s": 1.0}
    assert timer.total() == {"rollout": 3.0, "update": 3.0}


def test_a_phase_that_raises_is_counted() -> None:
    now = iter([0.0, 2.0])
    timer = PhaseTimer(lambda: next(now))
    with pytest.raises(ZeroDivisionError), timer.phase("rollout"):
        raise ZeroDivisionError

    assert timer.total() == {"rollout": 2.0}


def test_phases_of_several_threads_add_up() -> None:
    timer = PhaseTimer()

    def work() -> None:
        for _ in range(1000):
            timer.add("rollout", 1.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert timer.total() == {"rollout": 4000.0}


@pytest.mark.parametrize(("tokens", "seconds", "speed"), [(300, 2.0, 150.0), (300, 0.0, 0.0)])
def test_tokens_per_s(tokens: float, seconds: float, speed: float) -> None:
    assert tokens_per_s(tokens, seconds) == speed
