"""Terminal: reads bounded numbers, and prints text, tables and JSON that cannot control it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import IO, Annotated, Any, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.errors import DataError, StoreError
from agentrl.guards.printable import fitted, printable, printable_json

_WIDE = 200
# A column of text is cut no further than to this width.
_NARROWEST = 6


@contextmanager
def reading_stored_files() -> Iterator[None]:
    """Turns a StoreError within into a DataError: an unreadable file is a fault of the data, which
    ends a command without a traceback.
    """
    try:
        yield
    except StoreError as error:
        raise DataError(str(error)) from error


def say_passed_over(damage: Iterable[str]) -> None:
    """Names what of a run cannot be read and is in no answer, on standard error."""
    for text in damage:
        say(f"! passed over: {text}", file=sys.stderr)


class _Console(Console):
    """One whose command ends where the reader of its output has closed it."""

    def on_broken_pipe(self) -> None:
        # rich would raise SystemExit, which is a user's code's here
        raise BrokenPipeError


class LastingConsole(Console):
    """One whose command goes on where the reader of its output has closed it."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        drop_output()


def drop_output() -> None:
    """What is still written to standard output, whose reader has closed it, is lost.

    Python flushes it once more at its exit, which must not raise again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Colours and the terminal's width on a terminal; plain and wide lines otherwise."""
    terminal = sys.stdout.isatty()
    return _Console(
        file=sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal else _WIDE,
    )


def counted(number: int, noun: str) -> str:
    """``1 turn``, ``2 turns``, ``3 trajectories``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def say(
    text: str = "",
    *,
    hang: int | None = None,
    whole: bool = False,
    file: IO[str] | None = None,
) -> None:
    """Print text for people, made printable: on a terminal in lines that fit it.

    Args:
        text: one line or several. A command in it stands in backticks, which keep it on one line.
        hang: as in :func:`~agentrl.guards.printable.fitted`.
        whole: no line is broken: it is a command, or ends with one.
        file: standard output, or error.
    """
    out = file or sys.stdout
    text = printable(text)
    if out.isatty() and not whole:
        text = fitted(text, Console(file=out).width, hang=hang)
    print(text, file=out, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under their headings; numbers stand right.

    Where the terminal is too narrow, headings take several lines, then columns move together, then
    the widest columns of text are cut, but never the first, which names the row. What does not fit
    even so are the last columns, which are left out. That is told below the table.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    indices = range(len(columns))
    numeric = [
        bool(cells) and all(line[index].numeric for line in cells) for index in indices
    ]
    out = console()
    room = [
        max((line[index].text.cell_len for line in cells), default=0) for index in indices
    ]
    fitting = _fitting(columns, room, numeric, out.width)
    left_out = columns[fitting:]
    room = room[:fitting]
    headings = list(columns[:fitting])
    gap = 2
    if _width(headings, room, gap) > out.width:
        headings = [heading.replace(" ", "\n") for heading in headings]
    if _width(headings, room, gap) > out.width:
        gap = 1
    cut = _cut(headings, room, numeric, _width(headings, room, gap) - out.width)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if numeric[index] else "left",
            no_wrap=True,
            max_width=cut.get(index),
        )
    for line in cells:
        table.add_row(*(cell.text for cell in line[:fitting]))
    out.print(table)
    told = ["texts that end in … are cut to fit the terminal"] if cut else []
    told += [f"the terminal has no room for {', '.join(left_out)}"] if left_out else []
    if told:
        say(f"({'; '.join(told)}; a pipe or --json has them whole)")


def _fitting(
    columns: Sequence[str], room: Sequence[int], numeric: Sequence[bool], width: int
) -> int:
    """How many of the first columns fit a width, each as narrow as it may be; at least two."""
    total = 0
    for index, name in enumerate(columns):
        heading = _heading_width(name.replace(" ", "\n"))
        whole = index == 0 or numeric[index]
        total += max(heading, room[index] if whole else min(room[index], _NARROWEST))
        if total > width and index >= 2:
            return index
        # Columns stand at least one character apart.
        total += 1
    return len(columns)


def _width(headings: Sequence[str], room: Sequence[int], gap: int) -> int:
    """Columns of the terminal that a table takes whose cells take ``room``."""
    return sum(map(max, map(_heading_width, headings), room)) + gap * (len(room) - 1)


def _heading_width(heading: str) -> int:
    return max(map(cell_len, heading.split("\n")))


def _cut(
    headings: Sequence[str], room: Sequence[int], numeric: Sequence[bool], excess: int
) -> dict[int, int]:
    """The widths of columns of text that must be narrower, the widest first, so that nothing is in
    excess.
    """
    least = [max(_NARROWEST, _heading_width(heading)) for heading in headings]
    widths = {
        index: width
        for index, width in enumerate(room)
        if index and not numeric[index] and width > least[index]
    }
    cut: dict[int, int] = {}
    while excess > 0 and widths:
        widest = max(widths, key=lambda index: widths[index])
        widths[widest] -= 1
        cut[widest] = widths[widest]
        excess -= 1
        if widths[widest] == least[widest]:
            del widths[widest]
    return cut


class _Cell(NamedTuple):
    text: Text
    numeric: bool


def _cell(value: Any) -> _Cell:
    text = "-" if value is None else str(value)
    if isinstance(value, float) and math.isfinite(value):
        # Three decimals would show such a number as nothing.
        small = 0 < abs(value) < 5e-4
        text = f"{value:.2e}" if small else f"{value:.3f}"
    return _Cell(
        Text(printable(text).replace("\n", "⏎")),
        value is None or isinstance(value, int | float),
    )


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Indented JSON; a number that is not finite becomes null, which JSON can carry."""
    print(_json(value, indent=2))


def print_json_line(value: Mapping[str, Any]) -> None:
    """JSON as ``print_json`` has it, on one line at once."""
    print(_json(value), flush=True)


def _json(value: Mapping[str, Any] | Sequence[Any], indent: int | None = None) -> str:
    # JSON has no NaN and no infinity: a second reading turns both into null.
    plain = json.dumps(
        value, default=lambda it: dict(it) if isinstance(it, Mapping) else str(it)
    )
    finite = json.loads(plain, parse_constant=lambda _: None)
    spelled = "utf" not in (sys.stdout.encoding or "utf-8").lower()
    return printable_json(json.dumps(finite, indent=indent, ensure_ascii=spelled))


def escape_what_cannot_be_written() -> None:
    """What a stream cannot encode is written as ``\\u2026``: a locale without UTF-8 has most
    characters not, and a tool's output may hold half a character.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


Flag = Annotated[bool, Parameter(negative=())]
Count = Annotated[int, Parameter(validator=Number(gte=0))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
PositiveCount = Annotated[int, Parameter(validator=Number(gte=1))]
Positive = Annotated[float, Parameter(validator=Number(gt=0))]
Seconds = Positive
