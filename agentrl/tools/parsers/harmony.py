"""Harmony parser: calls of gpt-oss (https://github.com/openai/harmony, docs/format.md).

A turn is several messages, each ``header<|message|>text`` with an end. The header names channel and
recipient: the analysis is thought, a recipient makes the message a call, and all else is said. The
prompt has written ``<|start|>assistant`` already, and the token that ends the turn (``<|return|>``
or ``<|call|>``) is not in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from agentrl.tools.parsers.reading import CallReading, Marks, written_call
from agentrl.types import ParsedMessage, ToolSpec

_START = "<|start|>"
_MESSAGE = "<|message|>"
_WHOLE = re.compile(
    r"(?P<header>.*?)<\|message\|>(?P<body>.*?)(?:<\|(?:end|call|return)\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
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
        reading = CallReading(text, one_call=True)
        thoughts: list[str] = []
        position = 0
        while not reading.full and (message := _WHOLE.match(text, position)):
            header = message["header"].removeprefix(_START)
            body = message["body"]
            channel = _CHANNEL.search(header)
            if recipient := _RECIPIENT.search(header):
                name = recipient[1].removeprefix("functions.")
                raw = text[position : message.end("body")]
                reading.add(raw, partial(written_call, name, body, _FORM))
            elif channel and channel[1] == "analysis":
                thoughts.append(body.strip())
            elif body:
                reading.content += ["\n\n" if reading.content else "", body]
            position = message.end()
        left = text[position:]
        if not reading.full and _RECIPIENT.search(left):
            detail = f"the call ends before its arguments; write it as {_FORM}"
            reading.problem("unclosed", detail, left)
        else:
            reading.rest(left, (_MESSAGE,))
        return reading.message("\n\n".join(thoughts) if thoughts else None)
