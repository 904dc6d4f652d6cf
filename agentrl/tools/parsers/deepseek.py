"""DeepSeek V3 parser: calls between special tokens, one block for all calls of a turn.

V3 and R1 write ``function<｜tool▁sep｜>NAME``, a line break and the arguments in a json fence; V3.1
writes ``NAME<｜tool▁sep｜>{...}`` (the chat templates of those models). Both are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.tools.parsers.reading import Reading
from agentrl.tools.parsers.reasoning import split_reasoning
from agentrl.tools.parsers.stable_prefix import Marks
from agentrl.types import ParsedMessage, ToolSpec

_OPEN = "<｜tool▁call▁begin｜>"
_CLOSE = "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"
_BLOCKS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_MARK = re.compile("|".join(map(re.escape, (_OPEN, _CLOSE, *_BLOCKS))))
_FORM = f"{_OPEN}function{_SEP}NAME\\n```json\\n{{...}}\\n```{_CLOSE}"
_FENCE = "```"


class DeepSeekParser:
    """Reads the calls between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``, or without these
    two.
    """  # noqa: E501

    marks = Marks(opens=(_OPEN,), closes=(_CLOSE,), others=_BLOCKS)

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser."""
        reasoning, rest = split_reasoning(text, before=_OPEN)
        reading = Reading()
        reading.blocks(
            rest,
            _MARK,
            (_OPEN, _CLOSE),
            lambda start: _read_call(rest, start, reading),
            keep_blanks=False,
        )
        return reading.message(reasoning)


def _read_call(text: str, start: int, reading: Reading) -> int:
    body = start + len(_OPEN)
    end = _MARK.search(text, body)
    if end is None or end.group() != _CLOSE:
        stop = end.start() if end else len(text)
        reading.problem(
            "unclosed", f"the call is not closed; end it with {_CLOSE}", text[start:stop]
        )
        return stop
    raw = text[start : end.end()]
    kind, found, rest = text[body : end.start()].partition(_SEP)
    if not found:
        reading.problem("missing_name", f"the call has no {_SEP}; write it as {_FORM}", raw)
        return end.end()
    if kind.strip() == "function" and "\n" in rest:
        name, _, written = rest.partition("\n")
    else:
        name = kind
        written = rest
    reading.written_call(name.strip(), _unfenced(written.strip()), raw, form=_FORM)
    return end.end()


def _unfenced(written: str) -> str:
    """What stands between the fences, where there are any."""
    body = written.removeprefix(_FENCE).removesuffix(_FENCE)
    return body.removeprefix("json") if len(written) - len(body) == 2 * len(_FENCE) else written
