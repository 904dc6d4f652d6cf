"""Parser contract, and the name of a parser in a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from agentrl.errors import ConfigError
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
from agentrl.types import ParsedMessage, ToolSpec
from agentrl.types.user_code.load import UserFunction, load_named


@runtime_checkable
class ToolCallParser(Protocol):
    """Reads a completion. One instance serves every episode, so it keeps no state between calls."""

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message, its calls and its problems.

        Args:
            text: the completion, without the token that ended it.
            tools: those on offer, for formats in which a value's kind is the schema's to say.

        Calls and problems share one sequence of ids, ``call_0``, ``call_1``, ..., in the order
        written. What looks like a call and cannot be read is a problem and stays in the message's
        content; nothing raises.
        """
        ...


BUILT_IN: Mapping[str, Callable[[], ToolCallParser]] = {
    "hermes": HermesParser,
    "glm": GLMParser,
    "deepseek": DeepSeekParser,
    "harmony": HarmonyParser,
    "llama": LlamaParser,
    "qwen_coder": QwenCoderParser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
    "fences": FenceParser,
    "none": PlainParser,
}
"""The parsers of agentrl by the names that ``model.tool_parser`` has for them; ``parser_for`` tries
them in this order.
"""


def load_parser(name: str, base_dir: str | Path | None = None) -> ToolCallParser:
    """A parser by name: a built-in one, ``none`` (no tools), or ``package.module:Class`` of your
    own.

    Raises:
        ConfigError: the name is none of these, or names no parser.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if ":" not in name:
        raise ConfigError(
            f"there is no parser {name!r}; use {', '.join(BUILT_IN)}, or package.module:Class"
        )
    found = load_named(name, base_dir, _broken)
    parser = UserFunction(found, object, _broken, name)() if isinstance(found, type) else found
    if not isinstance(parser, ToolCallParser):
        raise _broken(
            f"={name!r} is no parser: it needs a method parse(text, tools=()) -> ParsedMessage"
        )
    return parser


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"RolloutSpec.parser{rule}", fields=["RolloutSpec.parser"])
