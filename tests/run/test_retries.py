"""``agentrl train --retries``: a run outlives its driver's death, and is given up where no step is
gained twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import MachineError
from agentrl.run.lifetime import retries
from agentrl.run.lifetime.retries import progress
from agentrl.store import RunDirectory
from tests.kit.waiting import DEADLINE_S, is_alive, until
from tests.run.deadly_task import CALLS, DEADLY
from tests.run.tiny_run import CONFIG, descendants, metrics, name_of, states, told

ROOT = Path(__file__).parents[2]
AGENTRL = (sys.executable, "-m", "agentrl")
SHORT = (
    "stages.warmup.steps=2",
    "stages.rl.steps=3",
    "stages.rl.eval={}",
    "checkpoint.every=1",
    "checkpoint.asynchronous=false",
)
OVER_RAY = ("placement.mode=ray", "placement.rollout_workers=1", "run.deterministic=false")
LONG = ("stages.rl.steps=4000",)


class Command:
    """``agentrl train`` in a session of its own."""

    def __init__(self, folder: Path, *words: str, deadly: str = "") -> None:
        self.run_dir = folder / "run"
        self._log = folder / "told.txt"
        config = folder / "config.yaml"
        config.write_text(
            CONFIG.replace("tiny_task.py:graded", "deadly_task.py:deadly")
            if deadly
            else CONFIG
        )
        own = {DEADLY: deadly, CALLS: str(folder / "calls"), "PYTHONPATH": str(ROOT)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*AGENTRL, "train", str(config), f"run.dir={self.run_dir}", *SHORT, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, **own, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def finish(self) -> int:
        # up to four drivers, each of which imports all
        return self.process.wait(2 * DEADLINE_S)

    @property
    def text(self) -> str:
        return self._log.read_text()

    def retries(self) -> list[str]:
        """Those that the run's record has."""
        record: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())
        return [one["retry"] for one in record.get("resumed", ())]

    def driver(self) -> int:
        """The process that trains, once it has trained a step."""
        until(
            lambda: any(
                row["stage"] == "rl" and row["step"] for row in metrics(self.run_dir)
            ),
            lambda: self.text,
        )
        (driver,) = (pid for pid in descendants(self.process.pid) if os.getsid(pid) == pid)
        return driver


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[Command] = []

    def begin(*words: str, **named: Any) -> Command:
        folder = tmp_path / str(len(begun))
        folder.mkdir()
        begun.append(Command(folder, *words, **named))
        return begun[-1]

    yield begin
    for command in begun:
        command.process.kill()
        command.process.wait()


@pytest.mark.slow
def test_a_driver_that_is_killed_at_two_steps_goes_on_as_if_it_had_not_been(
    start: Start,
) -> None:
    # twelve episodes a step: in the second, and in the third after the second was played again
    command = start("--retries", "3", deadly="18 36")
    whole = start(deadly="none")
    assert command.finish() == 0, command.text
    checkpoint = f"{command.run_dir}/checkpoints/rl/step=00000"
    seen = f"the driver died by SIGKILL, with checkpoint {checkpoint}"
    told = [f"retry {number} of 3: {seen}{number}" for number in (1, 2)]
    assert command.retries() == told
    assert [
        line[2:] for line in command.text.splitlines() if line.startswith("! retry")
    ] == told
    assert whole.finish() == 0, whole.text
    assert metrics(command.run_dir) == metrics(whole.run_dir)
    assert states(command.run_dir)["trained"] == states(whole.run_dir)["trained"] == 36
    assert set(states(command.run_dir)) <= {"trained", "rolled_back"}


@pytest.mark.wide
def test_a_run_that_gains_no_step_twice_is_given_up_by_all_that_was_seen(
    start: Start,
) -> None:
    command = start("--retries", "9", deadly="all")
    assert command.finish() == 128 + signal.SIGKILL, command.text
    assert len(command.retries()) == 2
    told = command.text[command.text.index("error: ") :].splitlines()
    assert (
        told[0]
        == "error: agentrl train --retries gives up, since no step was gained twice:"
    )
    seen = (
        f"the driver died by SIGKILL, with checkpoint {command.run_dir}/checkpoints/warmup/"
    )
    assert told[1:4] == [f"  {number}. {seen}step=000002" for number in (1, 2, 3)]
    assert told[4].startswith(f"look into {command.run_dir}/logs/driver.jsonl, ")
    assert "and go on with: `agentrl train " in told[4]
    assert told[4].endswith(" --retries 9 --resume`")


@pytest.mark.wide
def test_a_mistake_in_the_configuration_is_told_once(start: Start) -> None:
    # the driver finds it, since code is loaded there
    command = start("--retries", "3", "stages.rl.train.loop=nope.py:train")
    assert command.finish() == 2, command.text
    assert command.text.count("train.loop='nope.py:train' cannot be loaded") == 1
    assert "retry" not in command.text


@pytest.mark.wide
@pytest.mark.parametrize(
    ("sign", "code", "by"),
    [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")],
)
def test_a_signal_that_asks_the_run_to_end_is_passed_on(
    start: Start, sign: signal.Signals, code: int, by: str
) -> None:
    command = start("--retries", "3", *LONG)
    driver = command.driver()
    command.process.send_signal(sign)
    assert command.finish() == code, command.text
    assert not is_alive(driver)
    assert f"interrupted by {by}; the checkpoint " in command.text
    assert "retry" not in command.text


@pytest.mark.wide
def test_a_driver_ends_with_the_process_that_would_start_it_again(start: Start) -> None:
    command = start("--retries", "3", *LONG)
    driver = command.driver()
    command.process.kill()
    until(lambda: not is_alive(driver), lambda: name_of(driver))


@pytest.mark.slow
def test_a_run_over_ray_loses_each_of_its_processes_once_and_goes_on(start: Start) -> None:
    """A rollout worker and a rank within the run, and its driver, of which nothing is left before
    the next begins."""
    command = start("--retries", "1", *OVER_RAY, "stages.rl.steps=16")
    first = command.driver()
    record = RunDirectory.open(command.run_dir).read_record
    for name, event in (("_RolloutWorker", "worker_lost"), ("_Rank", "ranks_restarted")):
        (pid,) = [
            one for one in descendants(first) if name_of(one).startswith(f"ray::{name}")
        ]
        os.kill(pid, signal.SIGKILL)
        until(partial(told, command.run_dir, event), lambda: command.text)
    until(lambda: "restarts" in record(), lambda: command.text)
    started = descendants(first)
    os.kill(first, signal.SIGKILL)
    until(lambda: command.retries() or command.process.poll(), lambda: command.text)
    assert not [
        name for name in map(name_of, started) if name and not name.endswith("Agent")
    ]
    assert command.finish() == 0, command.text
    assert [row["step"] for row in metrics(command.run_dir) if row["stage"] == "rl"] == [
        *range(1, 17)
    ]
    assert states(command.run_dir)["trained"] == 16 * 12
    assert set(states(command.run_dir)) <= {
        "trained",
        "rolled_back",
        "dropped",
        "cancelled",
    }
    (restart,) = record()["restarts"]
    assert (restart["rank"], len(told(command.run_dir, "worker_lost"))) == (0, 1)


def test_what_is_gained_is_what_checkpoints_keep_of_all_stages(tmp_path: Path) -> None:
    assert progress(tmp_path) == (0, "no checkpoint")
    for number, path in enumerate(("a/step=000012", "b/step=000003", "b/step=000003.001")):
        folder = tmp_path / "checkpoints" / path
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
        os.utime(folder / "manifest.json", (number, number))
    (tmp_path / "checkpoints" / "b" / "step=000009").mkdir()  # it was not finished
    assert progress(tmp_path) == (15, f"checkpoint {folder}")


@pytest.mark.parametrize("number", ["-1", "some"])
def test_a_number_of_retries_that_is_none_is_refused(tmp_path: Path, number: str) -> None:
    from agentrl.cli.main import run

    assert run(["train", str(tmp_path / "c.yaml"), "--retries", number]) == 2


def test_a_machine_without_proc_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_PROC", tmp_path / "proc")
    with pytest.raises(
        MachineError, match=r"--retries finds by /proc .* leave --retries out"
    ):
        retries.outlive(1, str(tmp_path), ["train"])
