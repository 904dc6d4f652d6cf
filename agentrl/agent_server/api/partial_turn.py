"""Partial turn: decodes and parses the beginning of a turn, as far as it is certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.tools.parsers import READ_AT_ONCE, MarkedFormat, ToolCallParser, stable_length
from agentrl.types import ParsedMessage, ToolSpec

_GROWTH = 32
"""A turn is parsed again after it has grown by 1/32, which takes linear time over its length."""


class PartialText:
    """Decodes ids that arrive in parts to a prefix of their whole text, in whole characters.

    Args:
        decode: decodes ids ``[n]`` to text.
    """

    def __init__(self, decode: Callable[[npt.NDArray[np.int32]], str]) -> None:
        self.text = ""
        self._decode = decode
        self._tail: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        # ids at the tail's beginning whose text is in ``text``
        self._known = 0

    def add(self, ids: npt.NDArray[np.int32]) -> str:
        """Appends ids ``[k]`` and returns the text so far.

        - The preceding ids are decoded again with them, because some tokenizers write a token
          differently at the very beginning.
        - A text that ends with U+FFFD may be a character whose last bytes have not arrived.
        """
        self._tail = np.concatenate([self._tail, ids])
        before = self._decode(self._tail[: self._known])
        whole = self._decode(self._tail)
        if whole.startswith(before) and not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            self.text += whole[len(before) :]
            self._tail = self._tail[self._known :]
            self._known = self._tail.size
        return self.text


@dataclass(slots=True)
class PartialMessage:
    """Parses the beginning of a turn's text with the parser of the whole text.

    Args:
        parser: of the format; only a ``MarkedFormat`` can parse a beginning.
        tools: the tools on offer.
        stop: strings that end the turn.
        opened: ``TurnGenerator.opened_reasoning``.
    """

    parser: ToolCallParser
    tools: Sequence[ToolSpec]
    stop: Sequence[str] = ()
    opened: str = ""
    # characters of the turn at the last parse
    _read: int = 0

    def read(self, text: str) -> ParsedMessage | None:
        """The message at the turn's beginning; None if more text is needed first."""
        size = len(text)
        if (
            not isinstance(self.parser, MarkedFormat)
            or size > READ_AT_ONCE
            or self._read <= size < self._read + self._read // _GROWTH
        ):
            return None
        self._read = size
        text = self.opened + text
        stable = text[: stable_length(text, self.parser.marks, self.stop)]
        parsed = self.parser.parse(stable, self.tools)
        # a closing mark within a call's text looks like the call's end
        return None if parsed.problems else parsed
