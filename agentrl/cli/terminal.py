"""What all commands print with: one console, and text that cannot steer the terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "print_json", "print_table", "shown"]

_CONTROL = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)} | {0x7F: 0x2421}
_CONTROL |= dict.fromkeys(range(128, 160), 65533)
_WIDE = 200


def console() -> Console:
    """Colours and the terminal's width on a terminal; plain and wide lines otherwise."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=None if terminal else _WIDE)


def shown(text: str) -> str:
    """``text`` with control characters made visible: a model or tool may have written escape sequences."""
    return text.translate(_CONTROL)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Rows under their headings; numbers stand right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    lines = [[_cell(value) for value in row] for row in rows]
    for index, column in enumerate(columns):
        numeric = all(line[index][1] for line in lines)
        table.add_column(column, justify="right" if numeric and lines else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(shown(text)) for text, _ in line))
    console().print(table)


def _cell(value: Any) -> tuple[str, bool]:
    if value is None:
        return "-", True
    if isinstance(value, float):
        small = 0 < abs(value) < 5e-4  # which three decimals would show as nothing
        return (f"{value:.2e}" if small else f"{value:.3f}" if math.isfinite(value) else str(value)), True
    return str(value), isinstance(value, int)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Indented JSON; a number that is not finite becomes null, which JSON can carry."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
