"""A run that is asked to end by a signal keeps a checkpoint, says how it goes on, and exits as a
shell would.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.forks import agentrl
from tests.kit.waiting import DEADLINE_S, until
from tests.run.tiny_run import CONFIG, metrics, states

pytestmark = pytest.mark.slow

SHORT = ("stages.warmup.steps=2",)

Start = Callable[..., "Driver"]


class Driver:
    """``agentrl train`` in a session of its own, which may send itself a signal."""

    def __init__(self, words: tuple[str, ...], run_dir: Path, sent: Any = None) -> None:
        self.run_dir = run_dir
        self._log = run_dir.with_name(f"{run_dir.name}.log")
        self.process = agentrl(("train", *words), self._log, sent)

    def finish(self) -> int | None:
        self.process.join(DEADLINE_S)
        return self.process.exitcode

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self.run_dir / "run.json").read_text(encoding="utf-8")
        )
        return found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signals") / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Iterator[Start]:
    drivers: list[Driver] = []

    def begin(*words: str, sent: Any = None) -> Driver:
        given = (str(config), f"run.dir={tmp_path / 'run'}", *SHORT, *words)
        drivers.append(Driver(given, tmp_path / "run", sent))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.process.kill()
        driver.process.join()


@pytest.mark.parametrize(
    ("sign", "by", "code"),
    [
        (signal.SIGTERM, "SIGTERM", 143),
        (signal.SIGUSR1, "SIGUSR1", 143),
        (signal.SIGINT, "Ctrl-C", 130),
    ],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    start: Start, config: Path, sign: signal.Signals, by: str, code: int
) -> None:
    third_step = "agentrl.controller.stage.stage_run:StageRun.record", 2 + 2
    driver = start(sent=(sign, *third_step))
    assert driver.finish() == code, driver.text
    last = driver.text.splitlines()[-1]
    assert last == f"interrupted by {by}"
    (told,) = [line for line in driver.text.splitlines() if line.startswith(f"{last};")]
    folder = driver.run_dir / driver.record()["interrupted"]["checkpoint"]
    assert folder.parent.name == "rl"
    assert (folder / "manifest.json").is_file()
    assert f"; the checkpoint {folder} stands; go on with: `agentrl train " in told
    assert "Traceback" not in driver.text
    assert driver.record()["interrupted"]["by"] == by
    words = shlex.split(told.partition("go on with: `agentrl ")[2].rstrip("`"))
    assert (words[0], words[-1]) == ("train", "--resume")
    if sign != signal.SIGTERM:
        return

    resumed = Driver(tuple(words[1:]), driver.run_dir)
    assert resumed.finish() == 0, resumed.text
    run_dir = config.parent / "whole"
    whole = Driver((str(config), f"run.dir={run_dir}", *SHORT), run_dir)
    assert whole.finish() == 0, whole.text
    assert learned(resumed) == learned(whole)
    assert set(states(resumed.run_dir)) <= {"trained", "rolled_back", "cancelled"}
    record = resumed.record()
    assert "interrupted" not in record
    assert record["resumed"][0]["interrupted"]["by"] == by


def learned(driver: Driver) -> list[dict[str, Any]]:
    """The rows of metrics without the count of episodes that were restarted by the signal."""
    rows = metrics(driver.run_dir)
    return [
        {k: v for k, v in row.items() if k != "count/restarted_episodes"} for row in rows
    ]


def test_an_evaluation_that_was_interrupted_is_made_up_for(start: Start) -> None:
    short = ("stages.rl.steps=1",)
    greedy = "agentrl.controller.evaluator:RolloutEvaluator._roll_out", 1
    driver = start(*short, sent=(signal.SIGTERM, *greedy))
    assert driver.finish() == 143, driver.text
    manifest = json.loads(
        (
            driver.run_dir / driver.record()["interrupted"]["checkpoint"] / "manifest.json"
        ).read_text(encoding="utf-8")
    )
    assert (manifest["state"]["step"], manifest["evaluating"]) == (0, "before")
    resumed = start(*short, "--resume")
    assert resumed.finish() == 0, resumed.text
    summary = json.loads((driver.run_dir / "summary.json").read_text(encoding="utf-8"))
    assert {"before", "after"} <= summary["eval"]["sums"].keys()


@pytest.mark.parametrize("whom", [pytest.param("driver", marks=pytest.mark.wide), "all"])
def test_a_run_on_ray_prints_no_native_stack(start: Start, whom: str) -> None:
    driver = start(
        "placement.mode=ray",
        "run.deterministic=false",
        "stages.rl.steps=4000",
        "stages.rl.eval={}",
        "checkpoint.every=1",
    )
    until(
        lambda: (
            not driver.process.is_alive()
            or any(driver.run_dir.glob("checkpoints/rl/*/man*"))
        ),
        lambda: driver.text,
    )
    assert driver.process.pid is not None
    # all: as scancel does; Ray's own processes and the ranks are of this session
    (os.kill if whom == "driver" else os.killpg)(driver.process.pid, signal.SIGTERM)
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
