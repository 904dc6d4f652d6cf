"""Parsers: their contract, the choice of one for a chat template, and long and growing completions.

Reading takes linear time, some 50 ms for ``READ_AT_ONCE`` characters at worst. What is longer is
read in a process of its own, since a thread would hold the interpreter's lock all the same.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.errors import ConfigError, DataError, MachineError
from agentrl.guards.child_process import ChildEndedError, ChildLimits, ask_child
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
from agentrl.tools.threads import BoundedThreads
from agentrl.types import Message, ParsedMessage, ToolCall, ToolSpec
from agentrl.types.messages import THOUGHTS_CLOSE, THOUGHTS_OPEN
from agentrl.types.user_code.load import UserFunction, built_in, load_named

if TYPE_CHECKING:
    from agentrl.render import Renderer


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


def load_parser(name: str) -> ToolCallParser:
    """A parser by name: a built-in one, ``none`` (no tools), or ``package.module:Class`` of your
    own.

    Raises:
        ConfigError: the name is none of these, or names no parser.
    """
    if (make := built_in(name, BUILT_IN, _broken)) is not None:
        return make()
    found = load_named(name, None, _broken)
    parser = (
        UserFunction(found, object, _broken, name)() if isinstance(found, type) else found
    )
    if not isinstance(parser, ToolCallParser):
        raise _broken(
            f"={name!r} is no parser: it needs a method parse(text, tools=()) -> ParsedMessage"
        )
    return parser


def _broken(rule: str) -> ConfigError:
    return ConfigError(f"RolloutSpec.parser{rule}", fields=["RolloutSpec.parser"])


_WORDS = {"text": "a word", "digits": "12", "number": 3, "list": ["naïve", None, True]}
_TOOL = ToolSpec(
    "probe_tool",
    "Tries the format of a call.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "digits": {"type": "string"},
            "list": {},
        },
    },
)


def parser_for(renderer: Renderer | None, name: str = "auto") -> ToolCallParser:
    """The parser of a model's calls.

    Args:
        renderer: writes the calls; None where an engine takes messages and reads the calls itself.
        name: ``auto`` for the built-in parser that reads back exactly the call that the renderer
            writes, or ``none``'s where the model's template has no calls; else as for
            ``load_parser``.

    Raises:
        ConfigError: no built-in parser reads what the template writes, or ``name`` names none.
        DataError: the renderer cannot write an assistant's message, so that the parser must be
            named.
    """
    if name != "auto":
        return load_parser(name)
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
        if (
            parsed.tool_calls == (call,)
            and not parsed.problems
            and parsed.message["content"] == ""
        ):
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


READ_AT_ONCE = 128 * 1024
"""Characters of a completion that are read on the event loop itself."""

PARSER_THREADS = BoundedThreads(2, "agentrl-parser")
"""The threads in which longer ones are waited for, or read where the parser is a user's own."""

_LIMITS = ChildLimits(time_s=300.0)
_CHILD = Path(__file__).parents[1] / "parser_child.py"


async def read_completion(
    parser: ToolCallParser, text: str, tools: Sequence[ToolSpec] = ()
) -> ParsedMessage:
    """What ``parser.parse(text, tools)`` gives: at once for most texts, from a process for very
    long ones, or from a thread where the parser is none of agentrl's, since another process may not
    be able to make it.

    Raises:
        MachineError: no process can be started, or it came to an end without an answer.
    """
    if len(text) <= READ_AT_ONCE:
        return parser.parse(text, tools)
    if type(parser) not in BUILT_IN.values():
        return await PARSER_THREADS.run(lambda: parser.parse(text, tools))
    asked = pickle.dumps((type(parser), text, tuple(tools)))
    return await PARSER_THREADS.run(lambda: _in_process(asked))


def _in_process(asked: bytes) -> ParsedMessage:
    try:
        found = ask_child(_CHILD, pickle.dumps((sys.path, asked)), _LIMITS)
    except (OSError, ChildEndedError) as error:
        raise MachineError(
            f"a process that reads a long completion of {len(asked)} bytes failed: {error}; where "
            "it was killed, give the machine more memory or let turns be shorter"
        ) from error
    answer: ParsedMessage = pickle.loads(found)
    return answer


@runtime_checkable
class MarkedFormat(Protocol):
    """A ``ToolCallParser`` that says how its format is marked, so that a completion can be told
    while it is written; a ``<think>`` at its beginning, which a prompt may have written, opens
    thoughts.
    """

    @property
    def marks(self) -> Marks: ...


def stable_length(text: str, marks: Marks, stop: Iterable[str] = ()) -> int:
    """Characters at the beginning of ``text`` in which no call, mark, or stop string is half
    written.

    Args:
        text: of a completion that goes on; a leading ``<think>`` block may be open.
        marks: of its format.
        stop: strings that would end it.
    """
    stop = tuple(stop)
    size = min(
        (at for at in (text.find(string) for string in stop) if at >= 0), default=len(text)
    )
    position = 0
    if text.lstrip().startswith(THOUGHTS_OPEN):
        end = text.find(THOUGHTS_CLOSE)
        if end < 0:
            return min(size, len(text) - _half_written(text, (THOUGHTS_CLOSE, *stop)))
        position = end + len(THOUGHTS_CLOSE)
    while (opening := _first(text, marks.opens, position)) is not None:
        closing = _first(text, marks.closes, opening[1])
        if closing is None:
            return min(size, opening[0])
        position = closing[1]
    every = (
        THOUGHTS_OPEN,
        THOUGHTS_CLOSE,
        *marks.opens,
        *marks.closes,
        *marks.others,
        *stop,
    )
    return min(size, len(text) - _half_written(text, every))


def _first(text: str, texts: Iterable[str], position: int) -> tuple[int, int] | None:
    """Begin and end of the leftmost of some texts."""
    found = ((at, at + len(one)) for one in texts if (at := text.find(one, position)) >= 0)
    return min(found, default=None)


def _half_written(text: str, texts: Iterable[str]) -> int:
    """Length of the longest end of ``text`` that begins one of ``texts`` and is not all of it."""
    return max(
        (size for one in texts for size in range(1, len(one)) if text.endswith(one[:size])),
        default=0,
    )
