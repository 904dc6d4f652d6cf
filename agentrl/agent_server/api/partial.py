"""A turn that is still being written: its ids as text, its text as a message, as far as both are certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from agentrl.tools.parsers import READ_AT_ONCE, MarkedFormat, Marks, ToolCallParser, settled
from agentrl.types import ParsedMessage, ToolSpec

__all__ = ["PartialMessage", "PartialText"]

_GROWTH = 32
"""A turn is read anew when it has grown by one part in so many: over its whole length that is linear time."""


class PartialText:
    """Decodes ids that come in parts; what it gives is the beginning of what they all decode to, in whole characters.

    Args:
        decode: ids ``[n]`` to text.
    """

    def __init__(self, decode: Callable[[npt.NDArray[np.int32]], str]) -> None:
        self.text = ""
        self._decode = decode
        self._tail: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._known = 0  # ids at the beginning of the tail whose text is given already

    def add(self, ids: npt.NDArray[np.int32]) -> str:
        """Takes ids ``[k]`` that follow; the text so far.

        The ids before are decoded once more with them, since some tokenizers write a token otherwise at the very
        beginning. A text that ends with U+FFFD may be a character whose last bytes are still to come.
        """
        self._tail = np.concatenate([self._tail, ids])
        before, whole = self._decode(self._tail[: self._known]), self._decode(self._tail)
        if whole.startswith(before) and not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            self.text += whole[len(before) :]
            self._tail = self._tail[self._known :]
            self._known = self._tail.size
        return self.text


class PartialMessage:
    """Reads the text of a turn that goes on, with the parser of the whole one.

    Args:
        parser: of the format; nothing is read of a turn that goes on where it is no ``MarkedFormat``.
        tools: on offer.
        stop: strings that end the turn.
        opened: ``TurnGenerator.thoughts_opened``.
    """

    def __init__(
        self,
        parser: ToolCallParser,
        tools: Sequence[ToolSpec],
        stop: Sequence[str] = (),
        opened: str = "",
    ) -> None:
        self._parser = parser
        self._marks: Marks | None = parser.marks if isinstance(parser, MarkedFormat) else None
        self._tools, self._stop = tools, tuple(stop)
        self._opened = opened
        self._read = 0  # characters of the turn that were read last

    def read(self, text: str) -> ParsedMessage | None:
        """What the beginning of the turn says; None where nothing can be said before more of it is there."""
        size = len(text)
        if (
            self._marks is None
            or size > READ_AT_ONCE
            or self._read <= size < self._read + self._read // _GROWTH
        ):
            return None
        self._read = size
        text = self._opened + text
        parsed = self._parser.parse(text[: settled(text, self._marks, self._stop)], self._tools)
        return (
            None if parsed.problems else parsed
        )  # a closing mark within a call's text looks like its end
