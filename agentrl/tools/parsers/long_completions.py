"""Long completions: read in another process, so that no event loop is held up.

Reading takes linear time, some 50 ms for ``READ_AT_ONCE`` characters at worst. What is longer is
read in a process of its own, since a thread would hold the interpreter's lock all the same.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence

from agentrl.errors import MachineError
from agentrl.tools.parsers.base import BUILT_IN, ToolCallParser
from agentrl.tools.threads import BoundedThreads
from agentrl.types import ParsedMessage, ToolSpec

READ_AT_ONCE = 128 * 1024
"""Characters of a completion that are read on the event loop itself."""

PARSER_THREADS = BoundedThreads(2, "agentrl-parser")
"""The threads in which longer ones are waited for, or read where the parser is a user's own."""

_DEADLINE_S = 300.0
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from agentrl.tools.parsers.long_completions import serve; serve()"
)


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
    command = [sys.executable, "-c", _BOOT, *sys.path]
    try:
        ended = subprocess.run(
            command, input=asked, capture_output=True, timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(
            f"a process that reads a long completion failed: {error}; see that one can start"
        ) from error
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace").strip()[-400:]
        raise MachineError(
            f"a process that reads a long completion of {len(asked)} bytes ended with status "
            f"{ended.returncode}: {said or 'it said nothing'}; where it was killed, give the "
            "machine more memory or let turns be shorter"
        )
    answer: ParsedMessage = pickle.loads(ended.stdout)
    return answer


def serve() -> None:
    """The process: reads what standard input asks for and answers on standard output."""
    make, text, tools = pickle.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pickle.dumps(make().parse(text, tools)))
