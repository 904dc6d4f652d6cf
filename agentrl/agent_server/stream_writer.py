"""Stream writer: turns the tokens of a running turn into deltas, as far as they are certain.

- A delta that was sent is final. If the end of a completion changes how its beginning is parsed,
  the client keeps the earlier parse, and its next request begins a new sequence.
- The streamed ids are always a prefix of the completion's ids.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.agent_server.api.request import ChatRequest
from agentrl.errors import TokenMismatchError
from agentrl.llm import to_wire
from agentrl.render import Renderer
from agentrl.rollouts.builder import TurnRequest
from agentrl.rollouts.tool_calls import renumbered
from agentrl.rollouts.turns import TurnGenerator, TurnResult
from agentrl.tools.parsers import READ_AT_ONCE, MarkedFormat, ToolCallParser, stable_length
from agentrl.types import Completion, Message, ParsedMessage, ToolSpec, concat_ids
from agentrl.types.arrays import F32, I32

_GROWTH = 32
"""A turn is parsed again after it has grown by 1/32, which takes linear time over its length."""

_UNREAD = "\N{REPLACEMENT CHARACTER}"
_WAITING = 8
"""Ids that may wait for the rest of a character, which has at most four bytes."""


class PartialText:
    """Decodes ids that arrive in parts to a prefix of their whole text, in whole characters.

    Args:
        decode: decodes ids ``[n]`` to text.
    """

    def __init__(self, decode: Callable[[I32], str]) -> None:
        self.text = ""
        self._decode = decode
        self._tail: I32 = np.zeros(0, dtype=np.int32)
        # ids at the tail's beginning whose text is in ``text``
        self._known = 0
        # the tail's size before which it is not decoded again
        self._again = 0

    def add(self, ids: I32) -> str:
        """Appends ids ``[k]`` and returns the text so far.

        - The preceding ids are decoded again with them, because some tokenizers write a token
          differently at the very beginning.
        - A text that ends with U+FFFD may be a character whose last bytes have not arrived; of many
          such ids only the last can be.
        """
        self._tail = np.concatenate([self._tail, ids])
        if (size := self._tail.size) < self._again:
            return self.text
        before = self._decode(self._tail[: self._known])
        whole = self._decode(self._tail)
        cut, text = self._settled(whole)
        if cut and whole.startswith(before):
            self.text += text[len(before) :]
            self._tail = self._tail[self._known :]
            self._known, self._again = cut - self._known, 0
        elif size - self._known > _WAITING:
            # A tokenizer that tells its bytes otherwise; all readings take linear time.
            self._again = 2 * size
        return self.text

    def _settled(self, whole: str) -> tuple[int, str]:
        """How many ids of the tail, the text of which is ``whole``, keep their text whatever comes,
        and that text; 0 where none do.
        """
        size = self._tail.size
        if not whole.endswith(_UNREAD):
            return size, whole
        if size - self._known > _WAITING:
            for cut in range(size - 1, size - 5, -1):
                text, rest = self._decode(self._tail[:cut]), self._decode(self._tail[cut:])
                # The parts of a character that goes on behind the cut are more marks than it.
                if rest and text + rest == whole:
                    return cut, text
        return 0, ""


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


class StreamWriter:
    """The deltas of one turn; created in the event loop that answers.

    The engine calls ``on_tokens`` from any thread; all other methods run in that event loop.

    Args:
        request: the request to answer. Without streaming, all deltas come at the end.
        disconnected: returns after the client has left; None for a client that stays.

    Attributes:
        news: set for each part of the turn that arrives, and by the caller at the turn's end;
            cleared by the caller.
    """

    def __init__(
        self,
        request: ChatRequest,
        disconnected: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        self.request = request
        self.disconnected = disconnected or asyncio.Event().wait
        self.news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._renderer: Renderer | None = None
        self._text: PartialText | None = None
        self._message: PartialMessage | None = None
        self._number = 0
        # Appended to by the engine's thread; read by the event loop from ``_num_read`` on.
        self._parts: list[tuple[I32, F32]] = []
        self._num_read = 0
        self._logprobs: list[dict[str, Any]] = []
        self._num_noted = 0
        self._sent = {"reasoning_content": "", "content": ""}
        self._num_calls = 0

    def start(self, turns: TurnGenerator, turn: TurnRequest, stop: Sequence[str]) -> None:
        """Prepares for the next turn of an episode.

        Args:
            turns: the episode's turn generator.
            turn: the turn.
            stop: strings that end it.
        """
        context = turns.context
        self._number = turns.num_calls
        self._renderer = context.renderer
        if context.renderer is not None:
            self._text = PartialText(context.renderer.decode)
            opened = turns.opened_reasoning(turn)
            self._message = PartialMessage(context.parser, turn.tools, stop, opened)

    def on_tokens(self, ids: I32, logprobs: F32) -> None:
        """See ``GenerateRequest.on_tokens``; called from any thread."""
        self._parts.append((ids, logprobs))
        with contextlib.suppress(RuntimeError):
            # the loop is closed, and no client is left
            self._loop.call_soon_threadsafe(self.news.set)

    def deltas(self) -> Iterator[dict[str, Any]]:
        """The new deltas of the turn so far."""
        # A slice that is counted afterwards: the engine's thread may append at any moment.
        unread = self._parts[self._num_read :]
        self._num_read += len(unread)
        for ids, logprobs in unread:
            self._note(ids, logprobs)
        if unread and self._text is not None and self._message is not None:
            parsed = self._message.read(
                self._text.add(np.concatenate([ids for ids, _ in unread]))
            )
            if parsed is not None:
                yield from self._new_deltas(renumbered(parsed, self._number).message)

    def final_deltas(self, turn: TurnResult) -> Iterator[dict[str, Any]]:
        """The remaining deltas of the whole turn."""
        return self._new_deltas(turn.action.message, whole=True)

    def logprobs(self, turn: TurnResult | None = None) -> list[dict[str, Any]]:
        """The logprobs of the tokens since the last call, in OpenAI's shape.

        Args:
            turn: the finished turn, for the logprobs of all its remaining tokens.

        Returns:
            One entry a token; none unless the request asks for them.
        """
        if turn is not None:
            segments = turn.completion.segments
            start = self._num_noted
            values = [
                segment.logprobs for segment in segments if segment.logprobs is not None
            ]
            logprobs = np.concatenate([np.zeros(0, np.float32), *values])
            self._note(concat_ids(segments)[start:], logprobs[start:])
        entries = self._logprobs
        self._logprobs = []
        return entries

    def check_completion(self, completion: Completion) -> None:
        """Checks that the streamed ids are the first ids of the completion.

        Raises:
            TokenMismatchError: the engine streamed other ids.
        """
        streamed = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in self._parts)])
        whole = concat_ids(completion.segments)
        if streamed.size > whole.size or not np.array_equal(
            streamed, whole[: streamed.size]
        ):
            raise TokenMismatchError(
                f"token consistency violated by request {completion.request_id!r}: the "
                f"{streamed.size} ids that the engine streamed are not the first of the "
                f"{whole.size} ids of its completion"
            )

    def _note(self, ids: I32, logprobs: F32) -> None:
        self._num_noted += ids.size
        if not self.request.logprobs:
            return
        assert self._renderer is not None, "an engine of ids has a renderer"
        for index, logprob in enumerate(logprobs.tolist()):
            if int(ids[index]) not in self._renderer.stop_token_ids:
                text = self._renderer.decode(ids[index : index + 1])
                # its bytes are unknown if it is a part of a character
                whole = _UNREAD not in text
                self._logprobs.append(
                    {
                        "token": text,
                        "logprob": logprob,
                        "bytes": list(text.encode()) if whole else None,
                        "top_logprobs": [],
                    }
                )

    def _new_deltas(
        self, message: Message, *, whole: bool = False
    ) -> Iterator[dict[str, Any]]:
        wire = to_wire(message, reasoning=True)
        for key, sent in self._sent.items():
            text = wire.get(key) or ""
            if len(text) > len(sent) and text.startswith(sent):
                self._sent[key] = text
                yield {key: text[len(sent) :]}
        if not whole and self.request.constraints.may_hide_calls:
            return
        for call in wire.get("tool_calls", [])[self._num_calls :]:
            yield {"tool_calls": [{"index": self._num_calls, **call}]}
            self._num_calls += 1
