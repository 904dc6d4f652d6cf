"""A run that ends by an error: its last lines are its sentence, where the rest is, and how it goes
on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.main import run
from agentrl.controller.recording.recorder import Recorder
from agentrl.errors import TrainingError
from agentrl.run.trainer import Trainer
from agentrl.store import read_jsonl
from tests.kit.waiting import DEADLINE_S
from tests.run.tiny_run import CONFIG

DYING = """
import os, signal

def loss(*args, **settings):
    print("what the rank wrote last", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
SHORT = ("stages.warmup.steps=1", "stages.rl.steps=1", "stages.rl.eval.every=null")


def breaks_in(stage: str, error: Exception) -> Callable[..., None]:
    """``Recorder.record_step`` that raises in a stage."""
    record_step = Recorder.record_step

    def record(self: Recorder, *args: Any, **settings: Any) -> None:
        if self.stage == stage:
            raise error
        record_step(self, *args, **settings)

    return record


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.mark.parametrize("stage", ["warmup", "rl"])
@pytest.mark.parametrize(
    ("kind", "args", "sentence", "of_the_rank"),
    [
        (KeyError, ("a bug of ours",), "KeyError: 'a bug of ours'", ""),
        (TrainingError, ("rank 0 broke\nRay's own text",), "rank 0 broke", "raised there"),
    ],
)
def test_the_last_lines_are_the_sentence_the_log_and_the_command_that_goes_on(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    kind: type[Exception],
    args: tuple[str, ...],
    sentence: str,
    of_the_rank: str,
) -> None:
    error = kind(*args)
    if isinstance(error, TrainingError):
        error.traceback_text = of_the_rank
    monkeypatch.setattr(Recorder, "record_step", breaks_in(stage, error))
    directory = config.parent / "run"
    words = ["train", str(config), f"run.dir={directory}", *SHORT]
    monkeypatch.setattr(sys, "argv", ["agentrl", *words])
    assert run(words) == 1
    out, err = capsys.readouterr()
    log = directory / "logs" / "driver.jsonl"
    lines = err.splitlines()
    assert lines[0].startswith(f"error: {sentence}")
    assert lines[1] == f"the traceback is in {log}"
    if stage == "warmup":
        assert len(lines) == 2  # there is nothing to go on from
    else:
        checkpoint = directory / "checkpoints" / "warmup" / "step=000001"
        (line,) = lines[2:]
        assert line.startswith(
            f"the checkpoint {checkpoint} stands; go on with: `agentrl train "
        )
        assert line.endswith(" --resume`")
    assert "Traceback" not in out + err
    (record,) = [row for row in read_jsonl(log) if row.get("event") == "run_failed"]
    assert "in record\n" in record["traceback"]
    assert record["traceback_of_rank"] == of_the_rank


def test_from_python_the_error_ends_with_them_too(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.config import load_config

    monkeypatch.setattr(Recorder, "record_step", breaks_in("rl", KeyError("a bug of ours")))
    loaded = load_config(config, [f"run.dir={config.parent / 'run'}", *SHORT])
    with Trainer(loaded) as trainer, pytest.raises(KeyError) as caught:
        trainer.train()
    log, command = caught.value.__notes__
    assert log == f"the traceback is in {config.parent / 'run' / 'logs' / 'driver.jsonl'}"
    assert "; go on with: `Trainer.train(resume=True) with run.dir=" in command


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_of_ray_follows_them_and_the_log_has_its_text(
    config: Path, terminal: bool
) -> None:
    (config.parent / "dying.py").write_text(DYING, encoding="utf-8")
    directory = config.parent / "run"
    settings = ["run.deterministic=false", "placement.mode=ray", *SHORT]
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(config),
        f"run.dir={directory}",
    ]
    command += [*settings, f"algorithm.policy_loss={config.parent / 'dying.py'}:loss"]
    told = on_a_terminal(command) if terminal else through_a_pipe(command)
    last = told.rpartition("error: ")[2].replace("\r\n", "\n")
    sentence, _, rest = last.partition("the traceback is in ")
    # Ray tells of the death before or after it has heard why
    known = r"died unexpectedly before finishing this task|is dead because its worker process has "
    known += r"died\. Worker exit type: SYSTEM_ERROR Worker exit detail: [^()]{,150}"
    sentence = " ".join(sentence.split())
    died = rf"actor\.update: the worker of rank 0 died: The actor (?:{known})\."
    assert re.fullmatch(died, sentence), sentence
    log, command_line = rest.splitlines()
    assert " stands; go on with: `agentrl train " in command_line
    assert told.count(log) == 1
    rows = list(read_jsonl(Path(log)))
    record, *_ = (row for row in rows if row.get("event") == "actor_died")
    assert "class_name: _Rank" in record["message"]
    (output,) = [row for row in rows if row.get("event") == "workers_output"]
    assert "what the rank wrote last" in output["message"]


def through_a_pipe(command: list[str]) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    return done.stdout


def on_a_terminal(command: list[str]) -> str:
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as driver:
        os.close(theirs)
        told = b""
        try:
            while part := os.read(ours, 65536):
                told += part
        except OSError:  # Linux's end of a terminal that nobody has open
            pass
        os.close(ours)
    assert driver.returncode == 1
    return told.decode()
