"""Long completions: read in another process, so that no event loop is held up.

Reading takes linear time, some 50 ms for ``READ_AT_ONCE`` characters at worst. What is longer is
read in a process of its own, since a thread would hold the interpreter's lock all the same.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import MachineError
from agentrl.guards.child_process import ChildEndedError, ChildLimits, ask_child
from agentrl.tools.parsers.base import BUILT_IN, ToolCallParser
from agentrl.tools.threads import BoundedThreads
from agentrl.types import ParsedMessage, ToolSpec

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
