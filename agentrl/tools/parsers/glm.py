"""GLM-4.5 parser: a name, then ``<arg_key>`` and ``<arg_value>`` pairs in ``<tool_call>``.

The format is that of the model's chat template, which writes text values bare and all others as
JSON. Which of the two a value is, is the tool's schema to say; without one, what reads as JSON is
JSON.
"""

from __future__ import annotations

import re

from agentrl.tools.parsers.reading import Marks, PairParser

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


class GLMParser(PairParser):
    """Reads ``<tool_call>`` blocks of key and value pairs; a closing tag within a value does not
    count.
    """

    marks = Marks(opens=("<tool_call>",), closes=("</tool_call>",))
    name = re.compile(r"\s*([^\s<>]+)")
    begins = "the tool's name"
    pair = _PAIR
    pair_form = "is no <arg_key> with its <arg_value>"
    key_word = "key"
    form = "<tool_call>NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>"
