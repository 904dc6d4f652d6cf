"""GLM-4.5 parser: a name, then ``<arg_key>`` and ``<arg_value>`` pairs in ``<tool_call>``.

The format is that of the model's chat template, which writes text values bare and all others as
JSON. Which of the two a value is, is the tool's schema to say; without one, what reads as JSON is
JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from agentrl.tools.parsers.reading import BlockParser, Body, Call, CallFault, Marks, schema_values
from agentrl.types import ToolSpec

_FORM = "<tool_call>NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>"
_NAME = re.compile(r"\s*([^\s<>]+)")
_PAIR = re.compile(
    r"""\s*<arg_key>
    (?: (?P<key> (?: (?! </?(?:tool_call|arg_key|arg_value)> ) . )*+ ) </arg_key>
        (?: \s*<arg_value>
            (?: (?P<value> (?: (?! </?arg_(?:key|value)> ) . )*+ ) (?P<whole></arg_value>) )?
        )?
    )?""",
    re.DOTALL | re.VERBOSE,
)
"""A pair, or the marks of one as far as they are in their order. A key holds no mark at all, and a
value none of a key or a value, or a slip between them would take what follows, other calls
included, for one long value.
"""


class GLMParser(BlockParser):
    """Reads ``<tool_call>`` blocks of key and value pairs; a closing tag within a value does not
    count.
    """

    marks = Marks(opens=("<tool_call>",), closes=("</tool_call>",))

    def read_body(self, text: str, start: int, tools: Sequence[ToolSpec]) -> Body:
        """A name and its pairs."""
        name = _NAME.match(text, start)
        written, position, slip = _read_pairs(text, name.end() if name else start)

        def call(close: int) -> Call:
            if name is None:
                raise CallFault(
                    "missing_name",
                    f"the call does not begin with the tool's name; write it as {_FORM}",
                )
            if extra := text[position:close].strip():
                raise CallFault(
                    "bad_arguments",
                    f"{extra[:40]!r} is no <arg_key> with its <arg_value>; write a call as {_FORM}",
                )
            if len(dict(written)) < len(written):
                twice = Counter(key for key, _ in written).most_common(1)[0][0]
                raise CallFault("bad_arguments", f"the key {twice!r} is given twice")
            return name[1], schema_values(name[1], dict(written), tools)

        return Body(slip, call)


def _read_pairs(text: str, position: int) -> tuple[list[tuple[str, str]], int, int]:
    """The pairs that stand at ``position``.

    Returns:
        Keys and values; the position behind the last whole pair; and how far the marks behind it
        are in their order.
    """
    written: list[tuple[str, str]] = []
    while pair := _PAIR.match(text, position):
        if not pair["whole"]:
            return written, position, pair.end()
        written.append((pair["key"].strip(), pair["value"]))
        position = pair.end()
    return written, position, position
