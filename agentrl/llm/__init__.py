"""A client of OpenAI-compatible servers, and the shapes in which messages travel there."""

from __future__ import annotations

from agentrl.llm.client import ChatAnswer, ChatClient, ChatUsage
from agentrl.llm.server import ChatServerSpec
from agentrl.llm.wire import CONTEXT_EXCEEDED, WireFault, from_wire, to_wire, tool_from_wire

__all__ = [
    "CONTEXT_EXCEEDED",
    "ChatAnswer",
    "ChatClient",
    "ChatServerSpec",
    "ChatUsage",
    "WireFault",
    "from_wire",
    "to_wire",
    "tool_from_wire",
]
