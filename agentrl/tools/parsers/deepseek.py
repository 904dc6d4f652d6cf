"""DeepSeek V3 parser: calls between special tokens, one block for all calls of a turn.

V3 and R1 write ``function<｜tool▁sep｜>NAME``, a line break and the arguments in a json fence; V3.1
writes ``NAME<｜tool▁sep｜>{...}`` (the chat templates of those models). Both are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.tools.parsers.reading import (
    BlockParser,
    Body,
    Call,
    CallFault,
    Marks,
    written_call,
)
from agentrl.types import ToolSpec

_OPEN = "<｜tool▁call▁begin｜>"
_CLOSE = "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"
_BLOCKS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_FORM = f"{_OPEN}function{_SEP}NAME\\n```json\\n{{...}}\\n```{_CLOSE}"
_FENCE = "```"


class DeepSeekParser(BlockParser):
    """Reads the calls between the two marks of a turn's block, or without these two."""

    marks = Marks(opens=(_OPEN,), closes=(_CLOSE,), others=_BLOCKS)
    keep_blanks = False

    def read_body(self, text: str, start: int, tools: Sequence[ToolSpec]) -> Body:
        """All that stands between the marks of a call."""
        return Body(start, lambda close: _call(text[start:close]))


def _call(body: str) -> Call:
    kind, found, rest = body.partition(_SEP)
    if not found:
        raise CallFault("missing_name", f"the call has no {_SEP}; write it as {_FORM}")
    name = kind
    if kind.strip() == "function" and "\n" in rest:
        name, _, rest = rest.partition("\n")
    written = rest.strip()
    if (
        len(written) >= 2 * len(_FENCE)
        and written.startswith(_FENCE)
        and written.endswith(_FENCE)
    ):
        written = written[len(_FENCE) : -len(_FENCE)].removeprefix("json")
    return written_call(name.strip(), written, _FORM)
