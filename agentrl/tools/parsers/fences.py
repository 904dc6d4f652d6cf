"""Fence parser: a fenced block of code is a call of the tool that its language names.

For models that write code rather than calls (arXiv:2402.01030). A block in another language is
content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from agentrl.tools.parsers.reading import Call, CallFault, Marks, Reading
from agentrl.types import ParsedMessage, ToolSpec
from agentrl.types.messages import split_reasoning

_FENCE = "```"
_OPEN = re.compile(r"^[ \t]*```[ \t]*([\w+-]+)[^\n`]*$", re.MULTILINE)
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


class FenceParser:
    """Reads fenced blocks whose language is a tool's name, or an alias of it: `````python```,
    `````bash``` for ``shell``. Their text is the tool's one required argument.
    """

    marks = Marks(opens=(_FENCE,), closes=(_FENCE,))

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser. Without ``tools`` there is ``python``."""
        offered = {tool.name: tool for tool in tools or _UNKNOWN}
        reasoning, rest = split_reasoning(text)
        reading = Reading.of(text, rest)
        position = 0
        while not reading.full and (opening := _OPEN.search(rest, position)):
            tool = _tool(opening[1], offered)
            closing = _CLOSE.search(rest, opening.end())
            end = closing.end() if closing else len(rest)
            raw = rest[opening.start() : end]
            reading.content.append(rest[position : opening.start()])
            if tool is None:
                reading.content.append(raw)
            elif closing is None:
                detail = f"the block of {opening[1]} is not closed; end it with a line of {_FENCE}"
                reading.problem("unclosed", detail, raw)
            else:
                code = rest[opening.end() + 1 : closing.start()].removesuffix("\n")
                reading.add(raw, partial(_call, tool, code))
            position = end
        reading.rest(rest[position:], (_FENCE,))
        return reading.message(reasoning)


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
