"""Display: shows a run on the terminal, one line a step and a table at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.errors import Closing
from agentrl.guards.printable import fitted, printable


@dataclass(frozen=True, slots=True)
class DisplayColumn:
    """One number of a step's line.

    Args:
        title: the heading.
        metric: its name in ``names.NAMES``; a step without it shows ``-``.
        form: a format specification for the number.
    """

    title: str
    metric: str
    form: str

    @property
    def width(self) -> int:
        """Characters: the heading's, and at least seven."""
        return max(len(self.title), 7)

    def cell(self, values: Mapping[str, float]) -> str:
        """The number, right-aligned."""
        value = values.get(self.metric)
        return ("-" if value is None else format(value, self.form)).rjust(self.width)


RL_COLUMNS = (
    DisplayColumn("reward", "reward/mean", ".3f"),
    DisplayColumn("accuracy", "accuracy/mean", ".3f"),
    DisplayColumn("turns", "turns/mean", ".2f"),
    DisplayColumn("tool ok", "tool/success_frac", ".0%"),
    DisplayColumn("tokens/s", "perf/tokens_per_s", ",.0f"),
)
SFT_COLUMNS = (
    DisplayColumn("loss", "policy/nll", ".4f"),
    DisplayColumn("lr", "optim/lr", ".1e"),
    DisplayColumn("tokens/s", "perf/tokens_per_s", ",.0f"),
)
PAIR_COLUMNS = (
    DisplayColumn("loss", "reward_model/loss", ".4f"),
    DisplayColumn("accuracy", "reward_model/accuracy", ".3f"),
    DisplayColumn("margin", "reward_model/margin", ".3f"),
    DisplayColumn("lr", "optim/lr", ".1e"),
    DisplayColumn("tokens/s", "perf/tokens_per_s", ",.0f"),
)


_SPARSE_LINES = 20


class StepDisplay(Closing):
    """Shows a run on a console: with a live line at the bottom of a terminal, otherwise in plain
    lines.

    Used as a context manager, so that the terminal is restored in every case.

    Args:
        console: the console to print on.
        run_dir: printed first.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        console: Console,
        run_dir: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._columns: tuple[DisplayColumn, ...] = RL_COLUMNS
        self._clock = clock
        self._num_steps = 0
        self._done = 0
        self._sparse = False
        self._last = clock()
        self._recent: deque[float] = deque(maxlen=20)
        self._status = ""
        self._live: Live | None = None
        console.print(
            f"[bold]run[/bold] {escape(str(run_dir))}", soft_wrap=True, highlight=False
        )
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._line,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()

    def close(self) -> None:
        """Restores the terminal; a second call does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(
        self,
        name: str,
        num_steps: int,
        *,
        columns: tuple[DisplayColumn, ...] = RL_COLUMNS,
        done: int = 0,
        sparse: bool = False,
    ) -> None:
        """Starts a stage.

        Args:
            name: its name and description.
            num_steps: its steps.
            columns: the numbers of its steps' lines.
            done: steps done before a resume.
            sparse: whether its steps are short. Without a terminal, it then gets at most twenty
                lines.
        """
        self._columns = columns
        self._num_steps = num_steps
        self._done = done
        self._sparse = sparse
        self._recent.clear()
        self._status = ""
        self._last = self._clock()
        resumed = f", resumed after {done}" if done else ""
        self._console.print(
            f"\n[bold]{escape(name)}[/bold] {num_steps} steps{resumed}",
            soft_wrap=True,
            highlight=False,
        )
        headings = "  ".join(column.title.rjust(column.width) for column in self._columns)
        self._console.print(
            f"{'step'.rjust(self._step_width)}  {headings}  time left",
            style="dim",
            soft_wrap=True,
        )

    def step(self, step: int, values: Mapping[str, float], note: str = "") -> None:
        """Shows a step's line.

        Args:
            step: the number of this step in its stage, from 1.
            values: its metrics by name.
            note: a remark at the end of the line, or below it on a narrow terminal.
        """
        now = self._clock()
        # Several steps may have passed since the last line that was shown.
        self._recent.append((now - self._last) / max(1, step - self._done))
        self._last = now
        self._done = step
        if self._sparse and not self._console.is_terminal and not self._is_due(step):
            return
        cells = "  ".join(column.cell(values) for column in self._columns)
        label = f"{step}/{self._num_steps}".rjust(self._step_width)
        # The oldest is left out: a stage's first step starts engines, evaluates the baseline and
        # compiles kernels, minutes that no other step takes.
        recent = list(self._recent)[1:] or self._recent
        mean = sum(recent) / len(recent)
        left = format_duration(mean * (self._num_steps - step)).rjust(len("time left"))
        line = f"{label}  {cells}  {left}"
        fits = len(line) + 2 + len(note) <= self._console.width
        between = "  " if fits else f"\n{' ' * len(label)}  "
        told = printable(f"{line}{between}{note}" if note else line)
        self._console.print(Text(told), soft_wrap=True)

    def status(self, text: str) -> None:
        """Shows the run's present activity, such as ``evaluating code, 120 of 512``, on a terminal
        alone.
        """
        self._status = text

    def message(self, text: str, *, style: str = "") -> None:
        """Prints a sentence between the steps: on a terminal broken between words, but in no
        command, which stands in backticks; otherwise in one line.
        """
        text = printable(text)
        if self._console.is_terminal:
            text = fitted(text, self._console.width, hang=0)
        self._console.print(Text(text, style=style), soft_wrap=True)

    def alert(self, text: str) -> None:
        """Prints a warning between the steps."""
        self.message(f"! {text}", style="yellow")

    def finish(
        self,
        evaluations: Mapping[str, Mapping[str, Any]],
        seconds: Mapping[str, float],
        hints: Sequence[str] = (),
    ) -> None:
        """Ends with the results, the seconds by phase and hints.

        Args:
            evaluations: ``summary.json``'s ``eval``: ``{set: {"before": {"sampled": .., "greedy":
                ..}, "after": {..}}}``.
            seconds: by phase, as in ``summary.json``.
            hints: commands to continue with.
        """
        self.close()
        results = _results(evaluations)
        if results.row_count:
            self._console.print()
            self._console.print(results)
        if seconds:
            longest = sorted(seconds.items(), key=lambda item: -item[1])
            phases = "  ".join(
                f"{name} {format_duration(spent)}" for name, spent in longest
            )
            self._console.print()
            self.message(f"seconds by phase: {phases}")
        for hint in hints:
            # it is copied: the terminal alone may break its line
            self._console.print(Text(printable(hint)), soft_wrap=True)

    def _is_due(self, step: int) -> bool:
        """Whether another twentieth of the steps is done."""
        now, before = (n * _SPARSE_LINES // self._num_steps for n in (step, step - 1))
        return now > before

    @property
    def _step_width(self) -> int:
        return max(len("step"), 2 * len(str(self._num_steps)) + 1)

    def _line(self) -> Table:
        """The live line: progress, seconds of this step, and activity."""
        table = Table.grid(padding=(0, 1))
        since = format_duration(self._clock() - self._last)
        status = Text(self._status, style="dim", overflow="ellipsis")
        cells: list[RenderableType] = [Text(since, style="dim"), status]
        if self._num_steps:
            # else it is before the first stage
            bar = ProgressBar(total=self._num_steps, completed=self._done, width=24)
            where = Text(f"{self._done}/{self._num_steps}, this step {since}", style="dim")
            cells = [bar, where, status]
        table.add_row(*cells)
        return table


def format_duration(seconds: float) -> str:
    """``0.4s``, ``42s``, ``3m 05s``, ``2h 07m``."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _results(evaluations: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each number of a set that was measured before or after."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("held-out accuracy")
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right")
    for name, evaluation in evaluations.items():
        before = evaluation.get("before") or {}
        after = evaluation.get("after") or {}
        for kind in dict.fromkeys([*before, *after]):
            was = before.get(kind)
            now = after.get(kind)
            change = "" if was is None or now is None else f"{now - was:+.3f}"
            cells = ["-" if number is None else f"{number:.3f}" for number in (was, now)]
            if cells != ["-", "-"]:
                table.add_row(escape(f"{name}, {kind}"), *cells, change)
    return table
