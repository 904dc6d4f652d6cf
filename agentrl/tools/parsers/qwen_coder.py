"""Qwen3-Coder parser: ``<function=NAME>`` with a ``<parameter=KEY>`` each, in ``<tool_call>``.

The format is that of the models' chat templates. They write texts bare and all other values as
JSON; which of the two a value is, is the tool's schema to say. Some write Python's ``True``,
``False`` and ``None``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from agentrl.tools.parsers.reading import BlockParser, Body, Call, CallFault, Marks, schema_values
from agentrl.types import ToolSpec

_FORM = (
    "<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n"
    "</tool_call>"
)
_NAME = re.compile(r"\s*<function=\s*([^\s<>]+?)\s*>")
_PAIR = re.compile(
    r"""\s*<parameter=(?P<key>[^<>]*+)>
    (?P<value> (?: (?! </?parameter[=>] | <function= ) . )*+ )
    (?P<whole></parameter>)?""",
    re.DOTALL | re.VERBOSE,
)
"""A parameter. Its value holds no mark of another one or of another call, or a slip would take what
follows for one long value.
"""
_END = re.compile(r"\s*</function>")
_WORDS = {"True": True, "False": False, "None": None}


class QwenCoderParser(BlockParser):
    """Reads ``<tool_call>`` blocks of one function each; a closing tag within a value does not
    count. A value's first and last line break belong to the format.
    """

    marks = Marks(opens=("<tool_call>",), closes=("</tool_call>",))

    def read_body(self, text: str, start: int, tools: Sequence[ToolSpec]) -> Body:
        """A function and its parameters."""
        name = _NAME.match(text, start)
        written, position, whole = _read_pairs(text, name.end() if name else start)
        end = _END.match(text, position) if whole else None
        last = end.end() if end else position

        def call(close: int) -> Call:
            if name is None:
                raise CallFault(
                    "missing_name", f"the call does not begin with <function=NAME>; write {_FORM}"
                )
            if end is None or text[last:close].strip():
                extra = text[last:close].strip()
                raise CallFault(
                    "bad_arguments",
                    f"{extra[:40]!r} stands where </function> or another whole <parameter=KEY> "
                    f"should; write a call as {_FORM}",
                )
            if len(dict(written)) < len(written):
                twice = Counter(key for key, _ in written).most_common(1)[0][0]
                raise CallFault("bad_arguments", f"the parameter {twice!r} is given twice")
            return name[1], schema_values(name[1], dict(written), tools, _WORDS)

        return Body(last, call)


def _read_pairs(text: str, position: int) -> tuple[list[tuple[str, str]], int, bool]:
    """The parameters that stand at ``position``.

    Returns:
        Keys and values, the position behind what was read, and whether all of it was whole.
    """
    written: list[tuple[str, str]] = []
    while pair := _PAIR.match(text, position):
        if not pair["whole"]:
            return written, pair.start("value"), False
        value = pair["value"].removeprefix("\n").removesuffix("\n")
        written.append((pair["key"].strip(), value))
        position = pair.end()
    return written, position, True
