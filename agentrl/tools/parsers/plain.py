"""Plain parser: all text is content, for models and tasks without tools."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.tools.parsers.reading import CallReading, Marks
from agentrl.types import ParsedMessage, ToolSpec
from agentrl.types.messages import split_reasoning


class PlainParser:
    """Finds no calls; only a leading ``<think>`` block is set apart."""

    marks = Marks()

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The text as an assistant's message."""
        reasoning, content = split_reasoning(text)
        return CallReading(content=[content]).message(reasoning)
