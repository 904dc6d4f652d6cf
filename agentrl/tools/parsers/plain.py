"""Plain parser: all text is content, for models and tasks without tools."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.tools.parsers.reading import Marks
from agentrl.types import Message, ParsedMessage, ToolSpec
from agentrl.types.messages import split_reasoning


class PlainParser:
    """Finds no calls; only a leading ``<think>`` block is set apart."""

    marks = Marks()

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The text as an assistant's message."""
        reasoning, content = split_reasoning(text)
        message: Message = {"role": "assistant", "content": content.strip()}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        return ParsedMessage(message, (), ())
