"""What the commands print fits a terminal of 80 columns, in whole words; what had to be cut is
told.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from agentrl.guards.printable import fitted
from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.types import Message, Segment, SegmentKind, Status, Task, Trajectory, Turn
from tests.kit.waiting import DEADLINE_S

from .conftest import failed, ids, policy

Terminal = Callable[..., tuple[int, list[str]]]
CODE_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code" / "config.yaml"


@pytest.fixture
def terminal() -> Terminal:
    """Runs one command line in a terminal of 80 columns; its exit code and the lines that it
    shows.
    """

    def call(*tokens: str | Path) -> tuple[int, list[str]]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {
            name: value for name, value in os.environ.items() if name != "COLUMNS"
        }
        command = [sys.executable, "-m", "agentrl", *map(str, tokens)]
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm"},
        )
        os.close(theirs)
        shown = b""
        while data := _read(ours):
            shown += data
        os.close(ours)
        return process.wait(DEADLINE_S), [
            Text.from_ansi(line).plain.rstrip() for line in shown.decode().splitlines()
        ]

    return call


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # the other side is closed
        return b""


def evaluated() -> Trajectory:
    """An episode of an evaluation: long names, a long answer without a space, and many times of its
    own.
    """
    asked: Message = {"role": "user", "content": "what is 6*7"}
    said: Message = {"role": "assistant", "content": "answer" * 30}
    prompt = (Segment(SegmentKind.PROMPT, ids("<start> what is 6*7 <end>")),)
    turn = Turn(
        0,
        None,
        prompt,
        (policy("answer 42 <end>"),),
        "answer" * 30,
        said,
        observed=(asked,),
    )
    task = Task("held_out-multiplication-1234", (asked,), 42, "code")
    status = Status("truncated", "response_tokens")
    timings = {f"phase_{number}_s": 0.123456 for number in range(8)}
    return Trajectory(
        task,
        299,
        0,
        0,
        "eval",
        (turn,),
        status,
        {"correct": 0.0},
        0.0,
        label="code/before/greedy",
        timings=timings,
    )


@pytest.fixture
def wide_run(tmp_path: Path) -> Path:
    run = RunDirectory.create(
        tmp_path / "run",
        {"command": ["agentrl", "train", *(f"setting.{n}=1" for n in range(20))]},
    )
    with TrajectoryWriter(run) as writer:
        for trajectory in (evaluated(), failed()):
            writer.write(trajectory, step=1)
    return run.root


@pytest.mark.parametrize(
    "tokens", [("ls",), ("show",), ("show", "code/before/greedy/299-0-0")]
)
def test_what_is_shown_of_a_run_fits(
    terminal: Terminal, wide_run: Path, tokens: tuple[str, ...]
) -> None:
    code, lines = terminal(tokens[0], wide_run, *tokens[1:])
    assert code == 0, lines
    # a path and a command stay whole
    long = [line for line in lines if len(line) > 80 and str(wide_run) not in line]
    assert [line for line in long if not line.strip().startswith("command ")] == []


def test_ls_cuts_no_id_and_no_number_and_says_what_it_cuts(
    terminal: Terminal, wide_run: Path
) -> None:
    _, lines = terminal("ls", wide_run)
    row = next(line for line in lines if line.startswith("code/before"))
    assert row.split()[0] == "code/before/greedy/299-0-0"
    assert row.split()[-1] == "3"
    assert "…" in row
    assert "cut to fit the terminal" in " ".join(lines)


def test_ls_leaves_out_the_last_columns_before_it_cuts_an_id(
    terminal: Terminal, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    with TrajectoryWriter(run) as writer:
        writer.write(replace(evaluated(), stage="a_stage_with_a_long_name"), step=1)
    _, lines = terminal("ls", run.root)
    assert lines[0].split()[-1] == "reward"
    assert lines[1].split()[0] == "a_stage_with_a_long_name/code/before/greedy/299-0-0"
    assert lines[1].split()[-1] == "0.000"
    told = " ".join(" ".join(lines).split())
    assert "no room for turns, tokens, version" in told


def test_a_terminal_without_utf8_gets_escapes(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    with TrajectoryWriter(run) as writer:
        named = replace(evaluated().task, id="über")
        writer.write(replace(evaluated(), task=named), step=1)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def told(*tokens: str) -> str:
        command = [sys.executable, "-m", "agentrl", "ls", str(run.root), *tokens]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "\\xfcber" in told()
    assert json.loads(told("--json"))[0]["task"] == "über"


def test_ls_of_a_training_step_needs_no_cut(terminal: Terminal, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    with TrajectoryWriter(run) as writer:
        one = evaluated()
        task = Task("train-3750", one.task.messages, 42, "code")
        status = Status("truncated", "max_turns")
        writer.write(
            Trajectory(task, 959, 7, 0, "train", one.turns, status, {"correct": 0.0}, 0.0),
            step=100,
        )
    _, lines = terminal("ls", run.root)
    assert "truncated(max_turns)" in lines[1]
    assert "train-3750" in lines[1]
    assert not [line for line in lines if "…" in line or "cut to fit" in line]


def test_an_error_fits_in_whole_words(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    code, lines = terminal("train", CODE_EXAMPLE, "rollout.group_size=1", "optim.rl=1")
    assert code == 2
    assert max(map(len, lines)) <= 80
    told = " ".join(line.strip() for line in lines)
    assert (
        "needs rollout.group_size >= 2 (a trajectory is compared with its siblings), got 1"
        in told
    )


def test_what_is_piped_is_whole(
    agentrl: Callable[..., tuple[int, str, str]], wide_run: Path
) -> None:
    _, out, _ = agentrl("ls", wide_run)
    assert "held_out-multiplication-1234  truncated(response_tokens)" in out
    assert "cut to fit" not in out


def test_lines_that_fit_stay_as_they_are() -> None:
    assert fitted("  a   b\n\nc", 10) == "  a   b\n\nc"


def test_a_long_line_goes_on_below_its_own_beginning() -> None:
    assert fitted("  one two three four", 12) == "  one two\n    three\n    four"


def test_a_word_that_is_longer_than_the_line_stays_whole() -> None:
    path = "/runs/" + "long" * 10
    assert fitted(f"see {path} for more", 20).split() == ["see", path, "for", "more"]


def test_a_command_in_backticks_stays_on_one_line() -> None:
    told = "is not there; type: `pip install 'a package>=1'`, or leave it out"
    assert fitted(told, 20, hang=0).split("\n") == [
        "is not there; type:",
        "`pip install 'a package>=1'`,",
        "or leave it out",
    ]


def test_commands_to_copy_are_broken_by_the_terminal_alone(
    terminal: Terminal, tmp_path: Path
) -> None:
    folder = tmp_path / ("a long name " * 5)
    code, lines = terminal("init", folder)
    # the terminal's own lines are joined by who copies from it
    config = shlex.quote(str(folder / "config.yaml"))
    assert (code, lines[-1]) == (
        0,
        f"agentrl train {config}    # two steps of a tiny model",
    )


def test_the_command_of_a_run_can_be_copied(terminal: Terminal, tmp_path: Path) -> None:
    words = ["agentrl", "train", "a config.yaml", *(f"setting.{n}=1" for n in range(20))]
    run = RunDirectory.create(tmp_path / "run", {"command": words})
    with TrajectoryWriter(run) as writer:
        writer.write(failed(), step=1)
    _, lines = terminal("show", run.root)
    assert f"     command  {shlex.join(words)}" in lines
