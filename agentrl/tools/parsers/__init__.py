"""A completion's text read as an assistant's message; one format a file."""

from __future__ import annotations

from agentrl.tools.parsers.base import ToolCallParser, load_parser
from agentrl.tools.parsers.hermes import HermesParser
from agentrl.tools.parsers.plain import PlainParser

__all__ = ["HermesParser", "PlainParser", "ToolCallParser", "load_parser"]
