"""Parser choice: finds the parser that reads what a model's chat template writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError, DataError
from agentrl.tools.parsers.base import BUILT_IN, ToolCallParser, load_parser
from agentrl.tools.parsers.plain import PlainParser
from agentrl.types import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from agentrl.render import Renderer


_WORDS = {"text": "a word", "digits": "12", "number": 3, "list": ["naïve", None, True]}
_TOOL = ToolSpec(
    "probe_tool",
    "Tries the format of a call.",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "digits": {"type": "string"}, "list": {}},
    },
)


def parser_for(
    renderer: Renderer | None, name: str = "auto", base_dir: str | Path | None = None
) -> ToolCallParser:
    """The parser of a model's calls.

    Args:
        renderer: writes the calls; None where an engine takes messages and reads the calls itself.
        name: ``auto`` for the built-in parser that reads back exactly the call that the renderer
            writes, or ``none``'s where the model's template has no calls; else as for
            ``load_parser``.
        base_dir: where a user's parser is looked for.

    Raises:
        ConfigError: no built-in parser reads what the template writes, or ``name`` names none.
        DataError: the renderer cannot write an assistant's message, so that the parser must be
            named.
    """
    if name != "auto":
        return load_parser(name, base_dir)
    if renderer is None:
        return PlainParser()
    call = ToolCall("call_0", _TOOL.name, _WORDS)
    message: Message = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
    try:
        written = renderer.decode(renderer.target(message).token_ids)
    except DataError:
        # It is the call that has no place.
        renderer.target({"role": "assistant", "content": "a word"})
        written = ""
    if _TOOL.name not in written and not _tells_of_tools(renderer):
        return PlainParser()
    for make in BUILT_IN.values():
        parser = make()
        parsed = parser.parse(written, (_TOOL,))
        if parsed.tool_calls == (call,) and not parsed.problems and parsed.message["content"] == "":
            return parser
    raise ConfigError(
        "RolloutSpec.parser: auto finds no parser for the calls that the model's chat template "
        f"writes: {written!r}; "
        "name your own as package.module:Class, or none for a task without tools"
    )


def _tells_of_tools(renderer: Renderer) -> bool:
    try:
        prompt = renderer.prompt(({"role": "user", "content": "Hello"},), (_TOOL,))
    except DataError:
        return False
    return any(_TOOL.name in renderer.decode(segment.token_ids) for segment in prompt)
