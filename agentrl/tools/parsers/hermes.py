"""Hermes parser: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, also Qwen's.

The format is that of NousResearch's Hermes function calling, which Qwen2.5's and Qwen3's chat
templates ask for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.tools.parsers.reading import Reading
from agentrl.tools.parsers.reasoning import split_reasoning
from agentrl.tools.parsers.stable_prefix import Marks
from agentrl.tools.parsers.strict_json import JSONFault, read_json
from agentrl.types import ParsedMessage, ToolSpec

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_TAG = re.compile(r"</?tool_call>")
_FORM = '{"name": "...", "arguments": {...}}'


class HermesParser:
    """Reads ``<tool_call>`` blocks. JSON is read strictly: what another server would refuse is a
    problem here too.
    """

    marks = Marks(opens=(_OPEN,), closes=(_CLOSE,))

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser.

        A block ends at its closing tag; one inside a JSON string does not count. A well-formed call
        without a closing tag is a problem as well (``unclosed``), since it may have been cut. Text
        outside blocks is the content, a leading ``<think>`` block is ``reasoning_content``, and a
        call within it is a thought.
        """
        reasoning, rest = split_reasoning(text, before=_OPEN)
        reading = Reading()
        reading.blocks(rest, _TAG, (_OPEN, _CLOSE), lambda start: _read_block(rest, start, reading))
        return reading.message(reasoning)


def _read_block(text: str, start: int, reading: Reading) -> int:
    """Read the block that opens at ``start``; gives the position where the search goes on."""
    value: Any = None
    fault: JSONFault | None = None
    body_end = start + len(_OPEN)
    try:
        value, body_end = read_json(text, body_end)
    except JSONFault as found:
        fault = found
    end = _TAG.search(text, body_end)
    closed = end is not None and end.group() == _CLOSE
    block_end = end.end() if end and closed else end.start() if end else len(text)
    raw = text[start:block_end]
    if not closed:
        detail = f"the call is not closed; end it with {_CLOSE}" + (f" ({fault})" if fault else "")
        reading.problem("unclosed", detail, raw)
    elif fault:
        reading.problem(
            "malformed_json", f"the call is no valid JSON: {fault}; write it as {_FORM}", raw
        )
    elif end and (extra := text[body_end : end.start()].strip()):
        detail = f"one block holds one call, but {extra[:40]!r} follows its JSON; put it into another one"  # noqa: E501
        reading.problem("malformed_json", detail, raw)
    else:
        reading.object_call(value, raw, key="arguments", form=_FORM)
    return block_end
