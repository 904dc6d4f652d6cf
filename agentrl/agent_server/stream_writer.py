"""What a client is told of its turn: piece by piece while it is made, and the rest when it is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.agent_server.api.chat_request import ChatRequest
from agentrl.agent_server.api.partial import PartialMessage, PartialText
from agentrl.errors import TokenMismatchError
from agentrl.llm import to_wire
from agentrl.render import Renderer
from agentrl.rollouts.tool_calls import renumbered
from agentrl.rollouts.turns import TurnGenerator, TurnRequest, TurnResult
from agentrl.types import Completion, Message, concat_ids

__all__ = ["StreamWriter"]


class StreamWriter:
    """One turn as it is told; made in the event loop that answers.

    What was told cannot be taken back. Where the end of a completion makes its beginning read otherwise, the client
    has what was read first, and its next request begins a sequence.

    Args:
        request: what is answered; where it is no stream, all is told at the end.
    """

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._renderer: Renderer | None = None
        self._text: PartialText | None = None
        self._message: PartialMessage | None = None
        self._number = 0
        self._unread: list[npt.NDArray[np.int32]] = []
        self._heard: list[npt.NDArray[np.int32]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._noted = 0
        self._reasoning = self._content = ""
        self._calls = 0

    def begin(self, turns: TurnGenerator, ready: TurnRequest, stop: Sequence[str]) -> None:
        """The turn is the next that will be made.

        Args:
            turns: of its episode.
            ready: the turn.
            stop: strings that end it.
        """
        parts, self._number = turns.parts, turns.num_calls
        self._renderer = parts.renderer
        if parts.renderer is not None:
            self._text = PartialText(parts.renderer.decode)
            self._message = PartialMessage(
                parts.parser, ready.tools, stop, turns.thoughts_opened(ready)
            )

    def hear(self, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]) -> None:
        """``GenerateRequest.on_tokens``, from any thread."""
        self._heard.append(ids)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is told any more
            self._loop.call_soon_threadsafe(self._take, ids, logprobs)

    async def wait(self, made: asyncio.Future[TurnResult]) -> None:
        """Until more can be told, or the turn is made or given up."""
        news = asyncio.ensure_future(self._news.wait())
        either: list[asyncio.Future[Any]] = [news, made]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        self._news.clear()

    def deltas(self) -> Iterator[dict[str, Any]]:
        """What the client has not been told yet of the turn so far."""
        unread, self._unread = self._unread, []
        if unread and self._text is not None and self._message is not None:
            parsed = self._message.read(self._text.add(np.concatenate(unread)))
            if parsed is not None:
                yield from self._new(renumbered(parsed, self._number).message)

    def rest(self, made: TurnResult) -> Iterator[dict[str, Any]]:
        """What it has not been told of the whole turn."""
        yield from self._new(made.action.message, whole=True)

    def logprobs(self, made: TurnResult | None = None) -> list[dict[str, Any]]:
        """Those of the tokens since the last call, in OpenAI's shape; with the turn, those of all its tokens left;
        none where the request asks for none."""
        if made is not None:
            segments, noted = made.completion.segments, self._noted
            values = [segment.logprobs for segment in segments if segment.logprobs is not None]
            self._note(
                concat_ids(segments)[noted:],
                np.concatenate([np.zeros(0, np.float32), *values])[noted:],
            )
        entries, self._logprobs = self._logprobs, []
        return entries

    def hold_against(self, completion: Completion) -> None:
        """What was heard is the beginning of what was made.

        Raises:
            TokenMismatchError: the engine told other tokens.
        """
        heard, whole = (
            np.concatenate([np.zeros(0, np.int32), *self._heard]),
            concat_ids(completion.segments),
        )
        if heard.size > whole.size or not np.array_equal(heard, whole[: heard.size]):
            raise TokenMismatchError(
                f"golden rule broken by request {completion.request_id!r}: the {heard.size} ids that the engine told "
                f"while it went on are not the first of the {whole.size} that it made"
            )

    def _take(self, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]) -> None:
        self._unread.append(ids)
        self._note(ids, logprobs)
        self._news.set()

    def _note(self, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]) -> None:
        self._noted += ids.size
        if not self.request.logprobs:
            return
        assert self._renderer is not None, "an engine of ids has a renderer"
        for index, logprob in enumerate(logprobs.tolist()):
            if int(ids[index]) not in self._renderer.stop_token_ids:
                self._logprobs.append(
                    _entry(self._renderer.decode(ids[index : index + 1]), logprob)
                )

    def _new(self, message: Message, *, whole: bool = False) -> Iterator[dict[str, Any]]:
        wire = to_wire(message, reasoning=True)
        reasoning, content = wire.get("reasoning_content") or "", wire["content"] or ""
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            yield {"reasoning_content": reasoning[len(self._reasoning) :]}
            self._reasoning = reasoning
        if len(content) > len(self._content) and content.startswith(self._content):
            yield {"content": content[len(self._content) :]}
            self._content = content
        calls = wire.get("tool_calls", [])[self._calls :]
        for call in calls if whole or not self.request.demands.limits_calls else ():
            yield {"tool_calls": [{"index": self._calls, **call}]}
            self._calls += 1


def _entry(text: str, logprob: float) -> dict[str, Any]:
    """A token; the bytes of one that is a part of a character are not known."""
    whole = "\N{REPLACEMENT CHARACTER}" not in text
    return {
        "token": text,
        "logprob": logprob,
        "bytes": list(text.encode()) if whole else None,
        "top_logprobs": [],
    }
