"""Stream writer: turns the tokens of a running turn into the deltas of its streamed answer.

- A delta that was sent is final. If the end of a completion changes how its beginning is parsed,
  the client keeps the earlier parse, and its next request begins a new sequence.
- The streamed ids are always a prefix of the completion's ids.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.agent_server.api.chat_request import ChatRequest
from agentrl.agent_server.api.partial_turn import PartialMessage, PartialText
from agentrl.errors import TokenMismatchError
from agentrl.llm import to_wire
from agentrl.render import Renderer
from agentrl.rollouts.builder import TurnRequest
from agentrl.rollouts.tool_calls import renumbered
from agentrl.rollouts.turns import TurnGenerator, TurnResult
from agentrl.types import Completion, Message, concat_ids


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
        self._parts: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = []
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

    def on_tokens(self, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]) -> None:
        """See ``GenerateRequest.on_tokens``; called from any thread."""
        self._parts.append((ids, logprobs))
        with contextlib.suppress(RuntimeError):
            # the loop is closed, and no client is left
            self._loop.call_soon_threadsafe(self.news.set)

    def deltas(self) -> Iterator[dict[str, Any]]:
        """The new deltas of the turn so far."""
        unread = self._parts[self._num_read :]
        self._num_read += len(unread)
        for ids, logprobs in unread:
            self._note(ids, logprobs)
        if unread and self._text is not None and self._message is not None:
            parsed = self._message.read(self._text.add(np.concatenate([ids for ids, _ in unread])))
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
            values = [segment.logprobs for segment in segments if segment.logprobs is not None]
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
        if streamed.size > whole.size or not np.array_equal(streamed, whole[: streamed.size]):
            raise TokenMismatchError(
                f"token consistency violated by request {completion.request_id!r}: the "
                f"{streamed.size} ids that the engine streamed are not the first of the "
                f"{whole.size} ids of its completion"
            )

    def _note(self, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]) -> None:
        self._num_noted += ids.size
        if not self.request.logprobs:
            return
        assert self._renderer is not None, "an engine of ids has a renderer"
        for index, logprob in enumerate(logprobs.tolist()):
            if int(ids[index]) not in self._renderer.stop_token_ids:
                text = self._renderer.decode(ids[index : index + 1])
                # its bytes are unknown if it is a part of a character
                whole = "\N{REPLACEMENT CHARACTER}" not in text
                self._logprobs.append(
                    {
                        "token": text,
                        "logprob": logprob,
                        "bytes": list(text.encode()) if whole else None,
                        "top_logprobs": [],
                    }
                )

    def _new_deltas(self, message: Message, *, whole: bool = False) -> Iterator[dict[str, Any]]:
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
