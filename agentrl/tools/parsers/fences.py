"""Fence parser: a fenced block of code is a call of the tool that its language names.

For models that write code rather than calls (arXiv:2402.01030). A block in another language is
content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from agentrl.tools.parsers.reading import Call, CallFault, CallReading, FormatParser, Marks
from agentrl.types import ToolSpec

_FENCE = "```"
# Possessive: a long line whose characters are given back takes the square of its length.
_OPEN = re.compile(r"^[ \t]*+```[ \t]*+([\w+-]++)[^\n`]*+$", re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_LANGUAGES: Mapping[str, tuple[str, ...]] = {
    "py": ("python",),
    "python3": ("python",),
    "bash": ("shell",),
    "sh": ("shell",),
    "zsh": ("shell",),
}
"""Tools' names by the languages that are also called so, beside a tool's own name."""
_UNKNOWN = (ToolSpec("python", "", {"required": ["code"]}),)


class FenceParser(FormatParser):
    """Reads fenced blocks whose language is a tool's name, or an alias of it: `````python```,
    `````bash``` for ``shell``. Their text is the tool's one required argument. Without tools there
    is ``python``.
    """

    marks = Marks(opens=(_FENCE,), closes=(_FENCE,))
    opening = _OPEN

    def read(
        self, text: str, start: int, reading: CallReading, tools: Sequence[ToolSpec]
    ) -> int:
        """A block."""
        opening = _OPEN.match(text, start)
        assert opening is not None, "it was found there"
        tool = _tool(opening[1], {tool.name: tool for tool in tools or _UNKNOWN})
        closing = _CLOSE.search(text, opening.end())
        end = closing.end() if closing else len(text)
        raw = text[start:end]
        if tool is None:
            reading.content.append(raw)
        elif closing is None:
            detail = (
                f"the block of {opening[1]} is not closed; end it with a line of {_FENCE}"
            )
            reading.problem("unclosed", detail, raw)
        else:
            code = text[opening.end() + 1 : closing.start()].removesuffix("\n")
            reading.add(raw, partial(_call, tool, code))
        return end


def _tool(language: str, offered: Mapping[str, ToolSpec]) -> ToolSpec | None:
    names = (language.lower(), *_LANGUAGES.get(language.lower(), ()))
    return next((offered[name] for name in names if name in offered), None)


def _call(tool: ToolSpec, code: str) -> Call:
    required = tool.parameters.get("required", [])
    if len(required) != 1:
        raise CallFault(
            "bad_arguments",
            f"a block of code gives one argument, and {tool.name} needs {sorted(required)}; "
            "it cannot be called so",
        )
    return tool.name, {required[0]: code}
