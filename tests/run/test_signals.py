"""A run that is asked to end by a signal keeps a checkpoint, says how it goes on, and exits as a
shell would.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.tiny_run import CONFIG, metrics, states

pytestmark = pytest.mark.slow

DEADLINE_S = 240

Start = Callable[..., "Driver"]


class Driver:
    """``agentrl train`` in a session of its own."""

    def __init__(self, config: Path, run_dir: Path, *words: str) -> None:
        self.run_dir = run_dir
        self._log = run_dir.with_name(f"{run_dir.name}.log")
        command = [
            sys.executable,
            "-m",
            "agentrl",
            "train",
            str(config),
            f"run.dir={run_dir}",
            *words,
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not ready():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < end, self.text
            time.sleep(0.02)

    def done(self, stage: str, step: int) -> bool:
        return any((row["stage"], row["step"]) == (stage, step) for row in metrics(self.run_dir))

    def finish(self) -> int:
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Iterator[Start]:
    drivers: list[Driver] = []

    def begin(*words: str) -> Driver:
        drivers.append(Driver(config, tmp_path / "run", *words))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a run that nothing interrupted learned."""
    folder = tmp_path_factory.mktemp("whole")
    config = folder / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    driver = Driver(config, folder / "run")
    try:
        assert driver.finish() == 0, driver.text
    finally:
        driver.close()
    return learned(driver)


def learned(driver: Driver) -> list[dict[str, Any]]:
    """The rows of metrics without the count of episodes that were restarted by the signal."""
    rows = metrics(driver.run_dir)
    return [{k: v for k, v in row.items() if k != "count/restarted_episodes"} for row in rows]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGUSR1], ids=lambda sign: sign.name)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    start: Start, whole: list[dict[str, Any]], sign: signal.Signals
) -> None:
    driver = start()
    driver.until(lambda: driver.done("rl", 3))
    driver.process.send_signal(sign)
    assert driver.finish() == 143, driver.text
    last = driver.text.splitlines()[-1]
    assert last == f"interrupted by {sign.name}"
    (told,) = [line for line in driver.text.splitlines() if line.startswith(f"{last};")]
    folder = driver.run_dir / driver.record()["interrupted"]["checkpoint"]
    assert folder.parent.name == "rl"
    assert (folder / "manifest.json").is_file()
    assert f"; the checkpoint {folder} stands; go on with: agentrl train " in told
    assert "Traceback" not in driver.text

    words = shlex.split(told.partition("go on with: agentrl train ")[2])
    assert words[-1] == "--resume"
    resumed = start(*words[2:])
    assert resumed.finish() == 0, resumed.text
    assert learned(resumed) == whole
    assert set(states(resumed.run_dir)) <= {"trained", "rolled_back", "cancelled"}
    record = resumed.record()
    assert "interrupted" not in record
    assert record["resumed"][0]["interrupted"]["by"] == sign.name


def test_an_evaluation_that_was_interrupted_is_made_up_for(start: Start) -> None:
    driver = start("stages.rl.eval.sets.sums.args.num_tasks=400")
    driver.until(
        lambda: driver.done("warmup", 12) and (driver.run_dir / "traj/live/step=000000").is_dir()
    )
    driver.process.send_signal(signal.SIGTERM)
    assert driver.finish() == 143, driver.text
    manifest = json.loads(
        (driver.run_dir / driver.record()["interrupted"]["checkpoint"] / "manifest.json").read_text(
            encoding="utf-8"
        )
    )
    assert (manifest["state"]["step"], manifest["evaluating"]) == (0, "before")
    resumed = start("--resume")
    assert resumed.finish() == 0, resumed.text
    summary = json.loads((driver.run_dir / "summary.json").read_text(encoding="utf-8"))
    assert {"before", "after"} <= summary["eval"]["sums"].keys()


def test_a_run_that_has_not_begun_ends_at_once(start: Start) -> None:
    driver = start()
    driver.until(lambda: (driver.run_dir / "events.jsonl").exists())
    driver.process.send_signal(signal.SIGTERM)
    assert driver.finish() == 143, driver.text
    assert "; it has no checkpoint yet; go on with: agentrl train " in driver.text
    resumed = start("--resume")
    assert resumed.finish() == 0, resumed.text


def test_ctrl_c_says_how_the_run_goes_on(start: Start) -> None:
    driver = start()
    driver.until(lambda: driver.done("rl", 2))
    driver.process.send_signal(signal.SIGINT)
    assert driver.finish() == 130, driver.text
    assert "interrupted by Ctrl-C; the checkpoint " in driver.text
    assert " --resume\n" in driver.text
    assert driver.text.splitlines()[-1] == "interrupted by Ctrl-C"
    assert "Traceback" not in driver.text
    assert driver.record()["interrupted"]["by"] == "Ctrl-C"


@pytest.mark.parametrize("whom", ["driver", "all"])
def test_a_run_on_ray_prints_no_native_stack(start: Start, whom: str) -> None:
    driver = start(
        "placement.mode=ray",
        "run.deterministic=false",
        "stages.rl.steps=400",
        "checkpoint.every=1",
    )
    driver.until(lambda: driver.done("rl", 2))
    if whom == "driver":
        driver.process.send_signal(signal.SIGTERM)
    else:  # as scancel does; Ray's own processes and the ranks are of this session
        os.killpg(driver.process.pid, signal.SIGTERM)
    code = driver.finish()
    assert "*** SIGTERM received" not in driver.text
    assert "Traceback" not in driver.text
    if whom == "all" and code == 1:
        # Ray's client ends the driver where Ray's own daemon died first and held an object of its,
        # before the run's last words or after them (docs/controller.md); what the run kept stands
        assert list(driver.run_dir.glob("checkpoints/rl/step=*/manifest.json"))
        assert driver.record().get("interrupted", {"by": "SIGTERM"})["by"] == "SIGTERM"
        return
    assert code == 143, driver.text
    assert "interrupted by SIGTERM; " in driver.text
    assert "; the checkpoint " in driver.text
    assert driver.record()["interrupted"]["by"] == "SIGTERM"
