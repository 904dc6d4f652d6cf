"""Qwen3-Coder parser: ``<function=NAME>`` with a ``<parameter=KEY>`` each, in ``<tool_call>``.

The format is that of the models' chat templates. They write texts bare and all other values as
JSON; which of the two a value is, is the tool's schema to say. Some write Python's ``True``,
``False`` and ``None``.
"""

from __future__ import annotations

import re

from agentrl.tools.parsers.reading import Marks, PairParser

_PAIR = re.compile(
    r"""\s*<parameter=(?P<key>[^<>]*+)>
    (?: \n? (?P<value> (?: (?! </?parameter[=>] | <function= ) . )*+ )
        (?P<whole></parameter>) )?""",
    re.DOTALL | re.VERBOSE,
)
"""A parameter. Its value holds no mark of another one or of another call, or a slip would take what
follows for one long value.
"""


class QwenCoderParser(PairParser):
    """Reads ``<tool_call>`` blocks of one function each; a closing tag within a value does not
    count. A value's first and last line break belong to the format.
    """

    marks = Marks(opens=("<tool_call>",), closes=("</tool_call>",))
    name = re.compile(r"\s*<function=\s*([^\s<>]+?)\s*>")
    begins = "<function=NAME>"
    pair = _PAIR
    pair_form = "stands where </function> or another whole <parameter=KEY> should"
    key_word = "parameter"
    end = re.compile(r"\s*</function>")
    last_blank = "\n"
    # It is a ClassVar of the base.
    words = {"True": True, "False": False, "None": None}  # noqa: RUF012
    form = (
        "<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n"
        "</function>\\n</tool_call>"
    )
