"""What the terminal shows of a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from agentrl.metrics import (
    PAIR_COLUMNS,
    RL_COLUMNS,
    SFT_COLUMNS,
    StepDisplay,
    format_duration,
)

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
        # eight steps like the second: the first starts what a run needs
        " 2/10        -         -        -        -         -       8.0s",
    ]


@pytest.mark.parametrize(
    ("num_steps", "done", "lines"),
    [
        (500, 0, [*range(25, 501, 25)]),
        (500, 410, [425, 450, 475, 500]),
        (30, 0, 20),
        (7, 0, 7),
    ],
)
def test_where_there_is_no_terminal_an_imitating_stage_says_a_line_a_twentieth(
    num_steps: int, done: int, lines: int | list[int]
) -> None:
    console = piped()
    with StepDisplay(console, Path("r")) as display:
        display.stage("sft", num_steps, columns=SFT_COLUMNS, done=done, sparse=True)
        for step in range(done + 1, num_steps + 1):
            display.step(step, {"policy/nll": 1.0})

    told = [int(line.split("/")[0]) for line in output(console)[3:]]
    assert told[-1] == num_steps
    assert told == lines if isinstance(lines, list) else len(told) == lines


def test_the_time_left_of_a_line_a_twentieth_is_that_of_single_steps() -> None:
    console, clock = piped(), Clock()
    with StepDisplay(console, Path("r"), clock=clock) as display:
        display.stage("sft", 40, columns=SFT_COLUMNS, sparse=True)
        for step in (1, 2):
            clock.now += 3.0
            display.step(step, {})

    # 38 steps of 3 s are left
    assert output(console)[-1].split()[-2:] == ["1m", "54s"]


def on_terminal(*, width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)


def test_every_line_fits_a_terminal_of_80_columns() -> None:
    console = on_terminal(width=80)
    display = StepDisplay(console, Path("runs/x"))
    display.close()  # nothing live
    for columns in (RL_COLUMNS, SFT_COLUMNS, PAIR_COLUMNS):
        display.stage("rl (grpo)", 100_000, columns=columns)
        display.step(99_999, dict.fromkeys((column.metric for column in columns), 123456.0))
    display.alert("step 3: 41.0% of the episodes failed and are excluded " * 3)
    display.message("held-out code before: sampled 0.000, greedy 0.000 (10 tasks) " * 2)
    display.finish(
        {},
        dict.fromkeys(
            ("update", "rollout", "evaluation", "checkpoint", "publish", "wait_store"),
            700.0,
        ),
    )

    lines = [plain(line) for line in output(console)]
    assert max(map(len, lines)) <= 80
    # whole words, none of them lost
    assert "excluded step 3: 41.0%" in " ".join(line.strip() for line in lines)


def test_a_path_longer_than_the_terminal_stays_whole() -> None:
    console = on_terminal(width=40)
    path = "/runs/" + "long" * 20
    display = StepDisplay(console, Path("r"))
    display.close()
    display.finish({}, {}, [f"agentrl show {path}"])

    assert path in "".join(output(console))


def test_a_command_in_a_message_stays_on_one_line() -> None:
    console = on_terminal(width=40)
    display = StepDisplay(console, Path("r"))
    display.close()
    command = "`agentrl train config.yaml 'run.dir=a run' --resume`"
    display.message(
        f"interrupted by Ctrl-C; it has no checkpoint yet; go on with: {command}"
    )

    assert output(console)[-1].strip() == command


def plain(line: str) -> str:
    return Text.from_ansi(line).plain


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
    summary = {
        "code": {
            "before": {"sampled": 0.31, "greedy": 0.42},
            "after": {"sampled": 0.86},
            "num_tasks": 512,
        },
        "sums": {"after": {"sampled": 0.0625, "greedy": None}},
    }
    with StepDisplay(console, Path("r")) as display:
        display.finish(summary, {"update": 11.0, "rollout": 122.3}, ["agentrl ls r"])

    assert [line.split() for line in output(console)[1:]] == [
        ["held-out", "accuracy", "before", "after", "change"],
        ["code,", "sampled", "0.310", "0.860", "+0.550"],
        ["code,", "greedy", "0.420", "-"],
        ["sums,", "sampled", "-", "0.062"],
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


def test_what_is_done_before_the_first_stage_is_said_until_it_begins() -> None:
    console = on_terminal(width=80)
    with StepDisplay(console, Path("r")) as display:
        display.status("making ready the model and its workers")
        assert "making ready" in live_line(display)
        display.stage("grpo", 2)
        assert "making ready" not in live_line(display)


def live_line(display: StepDisplay) -> str:
    shown = Console(file=io.StringIO(), width=80)
    shown.print(display._line())
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


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
    [
        (0.44, "0.4s"),
        (9.99, "10s"),
        (42.4, "42s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (7620, "2h 07m"),
    ],
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
