"""Where the numbers go, and seconds by phase."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path

import pytest

from agentrl.metrics import JsonlSink, PhaseTimer, tokens_per_s
from agentrl.metrics.timing import PhaseTimes
from agentrl.store import JsonlWriter


def test_one_line_a_step(tmp_path: Path) -> None:
    sink = JsonlSink(JsonlWriter(tmp_path / "metrics.jsonl"))
    before = time.time()
    sink.log(1, {"reward/mean": 0.5}, "grpo")
    sink.log(2, {"reward/mean": 0.75}, "grpo")
    sink.close()

    lines = [
        json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
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


def test_seconds_by_phase() -> None:
    now = iter([0.0, 0.0, 2.0, 2.0, 5.0, 5.0, 5.0, 6.0, 6.0])
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


RANK = PhaseTimes("actor.update", 5.0, 6.0, "rank-1")


def test_a_step_has_the_times_of_its_phases() -> None:
    now = iter([0.0, 1.0, 3.0, 4.0, 9.0, 12.0, 13.0, 15.0, 16.0])
    told: list[list[PhaseTimes]] = []
    timer = PhaseTimer(lambda: next(now))
    with timer.phase("rollout"):
        pass
    timer.told = told.append
    with timer.phase("update"):
        pass
    timer.add("wait_store", 2.0)  # measured elsewhere: nobody knows when
    timer.put_ranks([RANK])
    timer.take_step()
    with timer.phase("checkpoint"):
        pass
    timer.take_step()

    assert [[(one.name, one.ended - one.began) for one in own] for own in told] == [
        [("step", 12.0), ("rollout", 2.0), ("update", 5.0), ("actor.update", 1.0)],
        [("step", 4.0), ("checkpoint", 2.0)],
    ]
    first = told[0]
    assert [one.began - first[0].began for one in first[:3]] == [0.0, 1.0, 4.0]
    assert first[3] == RANK
    # by the clock of the day, whatever the timer's is
    behind = time.time() - time.monotonic()
    assert [one[0].began for one in told] == pytest.approx([behind, behind + 12], abs=60)


def test_phases_that_last_are_told_with_their_seconds_so_far() -> None:
    now = [0.0]
    timer = PhaseTimer(lambda: now[0])
    with timer.phase("eval"):
        now[0] = 2.0
        with timer.phase("rollout"):
            now[0] = 5.0
            assert timer.now() == [
                {"phase": "eval", "s": 5.0},
                {"phase": "rollout", "s": 3.0},
            ]
        assert timer.now() == [{"phase": "eval", "s": 5.0}]
    assert timer.now() == []


def test_a_phase_that_raises_is_counted() -> None:
    now = iter([0.0, 0.0, 2.0])
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


@pytest.mark.parametrize(
    ("tokens", "seconds", "speed"), [(300, 2.0, 150.0), (300, 0.0, 0.0)]
)
def test_tokens_per_s(tokens: float, seconds: float, speed: float) -> None:
    assert tokens_per_s(tokens, seconds) == speed
