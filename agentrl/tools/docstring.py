"""Docstring reader: the description and arguments of a Google-style docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def read_docstring(documented: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description (all that stands before the first section) and the text of each entry under
    ``Args:``.
    """
    description: list[str] = []
    arguments: dict[str, str] = {}
    section = ""
    entry_indent: int | None = None
    name = ""
    for line in (inspect.getdoc(documented) or "").splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if indent == 0 and (heading := _SECTION.match(text)):
            section = heading.group(1)
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments", "Parameters") and text:
            entry_indent = indent if entry_indent is None else entry_indent
            entry = _ENTRY.match(text) if indent <= entry_indent else None
            if entry:
                name = entry.group(1)
                arguments[name] = entry.group(2)
            elif name:
                arguments[name] = f"{arguments[name]} {text}".strip()
    return "\n".join(description).strip(), arguments
