"""Lines: prints what a view tells of a run: lines that fit the terminal, and texts beside a margin.

Each line of a text begins with its margin, so that origins and sides are told apart without colour
too. Nothing that is printed can steer the terminal.
"""

from __future__ import annotations

from rich.cells import chop_cells
from rich.text import Text

from agentrl.cli.terminal import console, fitted
from agentrl.guards.printable import printable

MARGIN = 11
"""Columns of a line's name."""


def print_line(text: str = "", style: str = "", *, name: str = "") -> None:
    """A line, which goes on right of its name where it is longer than the terminal is wide."""
    out = console()
    text = printable(f"{name:<{MARGIN}}{text}" if name else text)
    if out.is_terminal:
        text = fitted(text, out.width, hang=MARGIN)
    out.print(Text(text, style=style), soft_wrap=True)


def print_text(text: str, style: str, first: str, others: str, goes_on: str) -> None:
    """A text of several lines, cut where the terminal ends.

    Args:
        text: what to print.
        style: of rich.
        first, others: the margin of its first line, and of each other one.
        goes_on: the margin where a line is longer than the terminal is wide.
    """
    out = console()
    margin = first
    for line in printable(text).split("\n"):
        width = out.width - len(margin) - 1
        for piece in chop_cells(line, width) if out.is_terminal and line else [line]:
            out.print(Text(f"{margin} {piece}" if margin else piece, style=style), soft_wrap=True)
            margin = goes_on
        margin = others
