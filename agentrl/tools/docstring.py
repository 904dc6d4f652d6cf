"""Docstring reader: the description and arguments of a Google-style docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):[ ]*$", re.MULTILINE
)
_ENTRY = re.compile(r"(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def read_docstring(documented: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description (all that stands before the first section) and the text of each entry under
    ``Args:``.
    """
    description, *sections = _SECTION.split(inspect.getdoc(documented) or "")
    arguments: dict[str, str] = {}
    name = ""
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        if heading not in ("Args", "Arguments", "Parameters"):
            continue
        lines = list(filter(str.strip, body.splitlines()))
        for line in lines:
            entry = _ENTRY.match(line)
            if entry and len(entry[1]) <= len(lines[0]) - len(lines[0].lstrip()):
                name = entry[2]
                arguments[name] = entry[3].rstrip()
            elif name:
                arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return description.strip(), arguments
