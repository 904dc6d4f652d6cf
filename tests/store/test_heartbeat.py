"""The heartbeat: what others see of a run that lives, ended, or was killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agentrl.store import Heartbeat, RunDirectory, RunWatch
from agentrl.store import heartbeat as heartbeat_module
from agentrl.store.heartbeat import read_heartbeat, read_told
from agentrl.store.json_text import to_json
from tests.kit.waiting import DEADLINE_S, until


def beats_until(run: RunDirectory, counter: int) -> None:
    """Returns once the counter has come so far."""
    for _ in range(1000):
        beat = read_heartbeat(run)
        if beat is not None and beat["counter"] >= counter:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"no beat {counter} came")


def test_a_run_beats_while_it_lives_and_says_how_it_ended(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # beats may come late on a busy machine, and this run is alive all the same
    monkeypatch.setattr(heartbeat_module, "_MISSED", 10_000)
    watch = RunWatch(run)
    assert watch.look().kind == "stopped"
    heartbeat = Heartbeat(run, period_s=0.01)
    heartbeat.reach("rl", 3)
    with heartbeat:
        beats_until(run, 4)
        state = watch.look()
        assert state.kind == "alive"
        assert state.heartbeat is not None
        assert (state.heartbeat["stage"], state.heartbeat["step"]) == ("rl", 3)
        assert state.heartbeat["pid"] == os.getpid()
    assert watch.look().kind == "finished"
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_a_run_that_failed_has_stopped_and_a_resumed_one_counts_on(
    run: RunDirectory,
) -> None:
    with pytest.raises(KeyError), Heartbeat(run):
        raise KeyError
    assert RunWatch(run).look().kind == "stopped"
    before = read_heartbeat(run)
    with Heartbeat(run):
        beat = read_heartbeat(run)
        assert beat is not None
        assert before is not None
        assert beat["counter"] > before["counter"]
        assert RunWatch(run).look().kind == "alive"


def test_a_killed_run_stops_when_three_beats_are_missing(run: RunDirectory) -> None:
    with Heartbeat(run):
        data = run.heartbeat_path.read_bytes()
    run.heartbeat_path.write_bytes(data)  # as a kill leaves it
    watch = RunWatch(run)
    assert watch.look().kind == "alive"
    _age(run.heartbeat_path, 60)
    assert watch.look().kind == "stopped"


def test_a_clock_that_went_back_hides_a_run_until_its_next_beat_alone(
    run: RunDirectory,
) -> None:
    with Heartbeat(run, period_s=3600):
        watch = RunWatch(run)
        beat = watch.look().heartbeat
        assert beat is not None
        # The next beat, without a wait for it.
        run.heartbeat_path.write_text(to_json({**beat, "counter": beat["counter"] + 1}))
        for hours in (-3, 3):  # the file is of another time than this machine's
            _age(run.heartbeat_path, 3600 * hours)
            assert watch.look().kind == "alive"


def test_a_run_without_a_heartbeat_is_finished_by_its_summary(run: RunDirectory) -> None:
    run.summary_path.write_text("{}")
    assert RunWatch(run).look().kind == "finished"


def test_a_heartbeat_that_cannot_be_written_is_told_once_and_ends_no_run(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    run.heartbeat_path.mkdir()
    (run.heartbeat_path / "file").touch()
    with Heartbeat(run, period_s=0.001) as heartbeat:
        threading.Event().wait(0.05)
        heartbeat.reach("rl", 1)
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events == ["heartbeat_failed"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are asked at once and again."""
    monkeypatch.setattr(heartbeat_module, "NOW_PERIOD_S", 0.001)


@pytest.mark.usefixtures("quick")
def test_what_its_parts_do_is_written_again_and_again(run: RunDirectory) -> None:
    looks = iter(range(1000))

    def broken() -> object:
        raise RuntimeError("dictionary changed size")

    with Heartbeat(run) as heartbeat:
        heartbeat.parts |= {"loop": lambda: next(looks), "odd": broken}
        until(lambda: (read_told(run.now_path) or {}).get("loop", 0) > 2)
    left = read_told(run.now_path)
    assert left is not None
    assert left["odd"] == {"failed": "RuntimeError('dictionary changed size')"}
    assert not [one for one in threading.enumerate() if one.name in ("heartbeat", "now")]


@pytest.mark.usefixtures("quick")
def test_a_part_that_hangs_holds_up_no_beat(run: RunDirectory) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    with Heartbeat(run, period_s=0.01) as heartbeat:
        heartbeat.parts["loop"] = lambda: hangs.set() or goes_on.wait(DEADLINE_S)
        assert hangs.wait(DEADLINE_S)
        beats_until(run, 5)
        goes_on.set()


@pytest.mark.usefixtures("quick")
def test_what_it_does_cannot_be_written_and_that_is_told_once(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    run.now_path.mkdir()
    (run.now_path / "file").touch()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    with Heartbeat(run) as heartbeat:
        heartbeat.parts["loop"] = look
        until(lambda: looks > 3)
    assert read_told(run.now_path) is None
    (told,) = [
        one for one in caplog.records if vars(one).get("event") == "heartbeat_failed"
    ]
    assert "now.json" in told.getMessage()
    assert RunWatch(run).look().kind == "finished"


def _age(path: Path, seconds: float) -> None:
    stat = path.stat()
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))
