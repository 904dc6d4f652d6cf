"""Harmony parser: calls of gpt-oss (https://github.com/openai/harmony, docs/format.md).

A turn is several messages, each ``header<|message|>text`` with an end. The header names channel and
recipient: the analysis is thought, a recipient makes the message a call, and all else is said. The
prompt has written ``<|start|>assistant`` already, and the token that ends the turn (``<|return|>``
or ``<|call|>``) is not in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.tools.parsers.reading import Reading, written_call
from agentrl.tools.parsers.stable_prefix import Marks
from agentrl.types import ParsedMessage, ToolSpec

_START = "<|start|>"
_MESSAGE = "<|message|>"
_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)")
_RECIPIENT = re.compile(r"\bto=(\S+?)(?=<\||\s|$)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
_FORM = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}"


class HarmonyParser:
    """Reads the messages of a turn. Text without any header is content, and a second call a
    problem.
    """

    marks = Marks(
        opens=(_START, "<|channel|>", " to="),
        closes=(_MESSAGE,),
        others=("<|end|>", "<|call|>", "<|return|>"),
    )

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        """The assistant's message; see ToolCallParser."""
        reading = Reading(one_call=True)
        thoughts = list[str]()
        position = 0
        while position < len(text) and not reading.full:
            opening = text.find(_MESSAGE, position)
            if opening < 0:  # a call that was cut, or words without a header
                left = text[position:]
                if _RECIPIENT.search(left):
                    detail = f"the call ends before its arguments; write it as {_FORM}"
                    reading.problem("unclosed", detail, left)
                else:
                    reading.content.append(left)
                break
            end = _END.search(text, opening + len(_MESSAGE))
            stop, following = (end.start(), end.end()) if end else (len(text), len(text))
            header = text[position:opening]
            body = text[opening + len(_MESSAGE) : stop]
            _read_message(header.removeprefix(_START), body, text[position:stop], reading, thoughts)
            position = following
        else:
            reading.rest(text[position:], (_MESSAGE,))
        return reading.message("\n\n".join(thoughts) if thoughts else None)


def _read_message(header: str, body: str, raw: str, reading: Reading, thoughts: list[str]) -> None:
    recipient = _RECIPIENT.search(header)
    channel = _CHANNEL.search(header)
    if recipient is not None:
        name = recipient.group(1).removeprefix("functions.")
        reading.add(raw, lambda: written_call(name, body, _FORM))
    elif channel is not None and channel.group(1) == "analysis":
        thoughts.append(body.strip())
    else:
        reading.content += ["\n\n" if reading.content else "", body] if body else []
