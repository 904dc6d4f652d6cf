"""Hermes parser: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, also Qwen's.

The format is that of NousResearch's Hermes function calling, which Qwen2.5's and Qwen3's chat
templates ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.guards.parsing import JSONFault, read_json
from agentrl.guards.secret_mask import beginning
from agentrl.tools.parsers.reading import (
    BlockParser,
    Body,
    Call,
    CallFault,
    Marks,
    object_call,
)
from agentrl.types import ToolSpec

_FORM = '{"name": "...", "arguments": {...}}'


class HermesParser(BlockParser):
    """Reads ``<tool_call>`` blocks. JSON is read strictly: what another server would refuse is a
    problem here too. A closing tag inside a JSON string does not count.
    """

    marks = Marks(opens=("<tool_call>",), closes=("</tool_call>",))

    def read_body(self, text: str, start: int, tools: Sequence[ToolSpec]) -> Body:
        """The JSON of a call."""
        end = start
        fault = ""
        try:
            value, end = read_json(text, start)
        except JSONFault as found:
            fault = str(found)

        def call(close: int) -> Call:
            if fault:
                raise CallFault(
                    "malformed_json",
                    f"the call is no valid JSON: {fault}; write it as {_FORM}",
                )
            if extra := text[end:close].strip():
                raise CallFault(
                    "malformed_json",
                    f"one block holds one call, but {beginning(extra, 40)!r} follows its JSON; "
                    "put it into another one",
                )
            return object_call(value, "arguments", _FORM)

        return Body(end, call, f" ({fault})" if fault else "")
