"""What the terminal shows of a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.metrics import SFT_COLUMNS, ResultRow, StepDisplay, format_duration, result_rows

VALUES = {
    "reward/mean": 0.3125,
    "accuracy/mean": 0.25,
    "turns/mean": 2.5,
    "tool/success_frac": 0.934,
    "perf/tokens_per_s": 4120.4,
}


class Clock:
    """Goes on when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def piped(*, width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def output(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_the_run_directory_comes_first_and_whole() -> None:
    console = piped(width=20)
    path = Path("/runs/a[bold]-very-long-name-that-is-wider-than-the-terminal")
    with StepDisplay(console, path):
        pass

    assert output(console) == [f"run {path}"]


def test_a_line_a_step() -> None:
    console, clock = piped(), Clock()
    with StepDisplay(console, Path("r"), clock=clock) as display:
        display.stage("grpo", 10)
        clock.now = 3.0
        display.step(1, VALUES)
        clock.now = 4.0
        display.step(2, {})

    assert output(console)[1:] == [
        "grpo 10 steps",
        " step   reward  accuracy    turns  tool ok  tokens/s  time left",
        " 1/10    0.312     0.250     2.50      93%     4,120        27s",
        " 2/10        -         -        -        -         -        16s",
    ]


def test_a_resumed_stage_counts_its_own_steps_for_the_time_left() -> None:
    console, clock = piped(), Clock()
    with StepDisplay(console, Path("r"), clock=clock) as display:
        display.stage("sft", 100, columns=SFT_COLUMNS, done=90)
        clock.now = 20.0
        display.step(95, {"policy/nll": 1.25})

    # five steps took 20 s, five are left
    assert output(console)[1] == "sft 100 steps, resumed after 90"
    assert output(console)[-1].split() == ["95/100", "1.2500", "-", "-", "20s"]


def test_the_end() -> None:
    console = piped()
    summary = {"code": {"before": {"sampled": 0.31, "greedy": 0.42}, "after": {"sampled": 0.86}, "num_tasks": 512}}
    with StepDisplay(console, Path("r")) as display:
        rows = [*result_rows(summary), ResultRow("code, without the tool", None, 0.0625)]
        display.finish(rows, {"update": 11.0, "rollout": 122.3}, ["agentrl ls r"])

    assert [line.split() for line in output(console)[1:]] == [
        ["held-out", "accuracy", "before", "after", "change"],
        ["code,", "sampled", "0.310", "0.860", "+0.550"],
        ["code,", "greedy", "0.420", "-"],
        ["code,", "without", "the", "tool", "-", "0.062"],
        ["seconds", "by", "phase:", "rollout", "2m", "02s", "update", "11s"],
        ["agentrl", "ls", "r"],
    ]


def test_a_pipe_gets_no_control_codes_and_no_status() -> None:
    console = piped()
    with StepDisplay(console, Path("r")) as display:
        display.stage("grpo", 2)
        display.status("evaluating")
        display.alert("5 of 128 excluded [sandbox]")

    text = "\n".join(output(console))
    assert "\x1b" not in text
    assert "evaluating" not in text
    assert "! 5 of 128 excluded [sandbox]" in text


def test_a_terminal_is_given_back_after_an_error() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)

    def fail() -> None:
        with StepDisplay(console, Path("r")) as display:
            display.stage("grpo", 2)
            display.status("evaluating")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert isinstance(console.file, io.StringIO)
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    written = console.file.getvalue()
    assert written.rindex(shown) > written.rindex(hidden)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (9.99, "10s"), (42.4, "42s"), (59.6, "1m 00s"), (185, "3m 05s"), (7620, "2h 07m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("width", "lines"), [(120, 1), (80, 2)])
def test_the_note_of_a_step_never_wraps(width: int, lines: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    with StepDisplay(console, Path("r")) as display:
        display.stage("grpo", 10)
        before = len(output(console))
        display.step(1, {"reward/mean": 1.0}, "no signal: 16 of 16 groups equal")
    shown = output(console)[before:]
    assert len(shown) == lines
    assert shown[-1].endswith("no signal: 16 of 16 groups equal")
    assert max(map(len, shown)) <= width
