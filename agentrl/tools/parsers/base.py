"""The contract of a parser, and how one is named in a configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from agentrl.errors import ConfigError
from agentrl.tools.parsers.hermes import HermesParser
from agentrl.tools.parsers.plain import PlainParser
from agentrl.types import ParsedMessage, load_object

__all__ = ["ToolCallParser", "load_parser"]


@runtime_checkable
class ToolCallParser(Protocol):
    """Reads a completion. One instance serves every episode, so it keeps no state between calls."""

    def parse(self, text: str) -> ParsedMessage:
        """The assistant's message, its calls and its problems.

        Calls and problems share one sequence of ids, ``call_0``, ``call_1``, ..., in the order written. What looks
        like a call and cannot be read is a problem and stays in the message's content; nothing raises.
        """
        ...


_BUILT_IN: dict[str, Callable[[], ToolCallParser]] = {"hermes": HermesParser, "none": PlainParser}


def load_parser(name: str, base_dir: str | Path | None = None) -> ToolCallParser:
    """A parser by name: ``hermes``, ``none`` (no tools), or ``package.module:Class`` of your own.

    Raises:
        ConfigError: the name is none of these, or names no parser.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if ":" not in name:
        raise ConfigError(f"there is no parser {name!r}; use {', '.join(_BUILT_IN)}, or package.module:Class")
    found = load_object(name, base_dir)
    parser = found() if isinstance(found, type) else found
    if not isinstance(parser, ToolCallParser):
        raise ConfigError(f"{name} is no parser: it needs a method parse(text) -> ParsedMessage")
    return parser
