"""Chat models: a client of OpenAI-compatible servers, and the shapes of messages on the wire."""

from __future__ import annotations

from agentrl.llm.blocks import from_blocks, to_blocks, tool_from_block
from agentrl.llm.client import ChatAnswer, ChatClient, ChatUsage
from agentrl.llm.items import (
    call_item,
    from_items,
    message_item,
    reasoning_item,
    text_part,
    to_items,
    tool_from_item,
)
from agentrl.llm.server import ChatServerSpec
from agentrl.llm.wire import (
    CONTEXT_EXCEEDED,
    WireFault,
    from_wire,
    to_wire,
    tool_from_wire,
    wire_reasoning,
)

__all__ = [
    "CONTEXT_EXCEEDED",
    "ChatAnswer",
    "ChatClient",
    "ChatServerSpec",
    "ChatUsage",
    "WireFault",
    "call_item",
    "from_blocks",
    "from_items",
    "from_wire",
    "message_item",
    "reasoning_item",
    "text_part",
    "to_blocks",
    "to_items",
    "to_wire",
    "tool_from_block",
    "tool_from_item",
    "tool_from_wire",
    "wire_reasoning",
]
