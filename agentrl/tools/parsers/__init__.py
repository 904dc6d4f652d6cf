"""Parsers: read a completion as an assistant's message; one format a file."""

from __future__ import annotations

from agentrl.tools.parsers.base import (
    READ_AT_ONCE,
    MarkedFormat,
    ToolCallParser,
    load_parser,
    parser_for,
    read_completion,
    stable_length,
)
from agentrl.tools.parsers.deepseek import DeepSeekParser
from agentrl.tools.parsers.fences import FenceParser
from agentrl.tools.parsers.glm import GLMParser
from agentrl.tools.parsers.harmony import HarmonyParser
from agentrl.tools.parsers.hermes import HermesParser
from agentrl.tools.parsers.llama import LlamaParser
from agentrl.tools.parsers.mistral import MistralParser
from agentrl.tools.parsers.plain import PlainParser
from agentrl.tools.parsers.pythonic import PythonicParser
from agentrl.tools.parsers.qwen_coder import QwenCoderParser
from agentrl.tools.parsers.reading import Marks

__all__ = [
    "READ_AT_ONCE",
    "DeepSeekParser",
    "FenceParser",
    "GLMParser",
    "HarmonyParser",
    "HermesParser",
    "LlamaParser",
    "MarkedFormat",
    "Marks",
    "MistralParser",
    "PlainParser",
    "PythonicParser",
    "QwenCoderParser",
    "ToolCallParser",
    "load_parser",
    "parser_for",
    "read_completion",
    "stable_length",
]
