"""One request in the engine, from its submission to its completion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from agentrl.engines.torch.model.images import ServedImage
from agentrl.errors import EngineError
from agentrl.types import (
    Completion,
    Experts,
    FinishReason,
    GenerateRequest,
    Segment,
    SegmentKind,
    TokenUsage,
    alternatives_side,
)

_SLACK = 16


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """A request and what became of it so far. While it runs, its ids live in its row; otherwise
    here.

    Args:
        future: of the event loop that awaits the answer.
        submitted: the engine's clock when it came in.
        ids: ``[n]`` prompt and sampled tokens.
        logprobs: ``[n]`` of the sampled tokens so far.
        marks: (policy version, index of its first sampled token), in order.
        alternatives: ids and logprobs ``[k]`` for each sampled token, where the request asks.
        experts: parts of the record from the request's first position on, as it was when each
            token was read first: what is read again under newer weights keeps its own.
        row: the decode row while it runs.
        images: of negative ids, served as long as they live.
    """

    request: GenerateRequest
    future: asyncio.Future[Completion]
    submitted: float
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(0, dtype=np.float32)
    )
    marks: list[tuple[int, int]] = field(default_factory=list)
    alternatives: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = field(
        default_factory=list
    )
    experts: list[Experts] = field(default_factory=list)
    row: int | None = None
    images: Sequence[ServedImage] = ()
    cached_tokens: int = 0
    kv_tokens: int | None = None
    answer: Completion | EngineError = field(init=False)
    started: float | None = None
    prefill_s: float = 0.0

    @property
    def num_prompt(self) -> int:
        """Ids that were given."""
        return int(self.ids.size - self.logprobs.size)

    @property
    def deadline(self) -> float:
        """On the engine's clock, which stops while the engine is paused."""
        allowed = self.request.deadline_s
        return float("inf") if allowed is None else self.submitted + allowed

    def resolve(self) -> None:
        """Gives the answer to who awaits it; on the future's event loop."""
        if self.future.done():
            return
        if isinstance(self.answer, EngineError):
            self.future.set_exception(self.answer)
        else:
            self.future.set_result(self.answer)

    def completed_stop(
        self,
        decode: Callable[[npt.NDArray[np.int32]], str] | None,
        sampled: npt.NDArray[np.int32],
    ) -> str | None:
        """The stop string that the last sampled token completed.

        Only a tail is decoded: a string of b bytes became complete just now, so it lies within the
        last b tokens that have text; ``_SLACK`` more cover tokens without any and characters cut at
        the tail's start.
        """
        stop = self.request.sampling.stop
        if not stop or decode is None:
            return None
        tail = 2 * max(len(string.encode()) for string in stop) + _SLACK
        text = decode(sampled[-tail:])
        return next((string for string in stop if string in text), None)

    def mark(self, version: int) -> None:
        """Notes that tokens sampled from now on are of ``version``."""
        if not self.marks or self.marks[-1][0] != version:
            self.marks.append((version, int(self.logprobs.size)))

    def add_alternatives(
        self, ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32]
    ) -> None:
        """Keeps as many as the request asks for of those beside the token sampled last."""
        if count := self.request.num_alternatives:
            self.alternatives.append((ids[:count].copy(), logprobs[:count].copy()))

    @property
    def unrecorded_from(self) -> int:
        """The first position whose experts are still to be recorded."""
        return self.request.experts_from + sum(map(len, self.experts))

    def _segment(self, version: int, first: int, end: int) -> Segment:
        given = self.alternatives[first:end]
        side = alternatives_side(*map(np.stack, zip(*given, strict=True))) if given else {}
        ids = self.ids[self.num_prompt + first : self.num_prompt + end]
        return Segment(
            SegmentKind.POLICY, ids, self.logprobs[first:end], version, side=side
        )

    def completion(
        self, finish_reason: FinishReason, now: float, stop_string: str | None = None
    ) -> Completion:
        """The answer: one POLICY segment a version that made at least one token."""
        count = int(self.logprobs.size)
        segments = tuple(
            self._segment(version, first, end)
            for (version, first), (_, end) in pairwise([*self.marks, (0, count)])
            if end > first
        )
        started = now if self.started is None else self.started
        return Completion(
            request_id=self.request.request_id,
            segments=segments,
            finish_reason=finish_reason,
            usage=TokenUsage(self.num_prompt, count, self.kv_tokens),
            stop_string=stop_string,
            cached_tokens=self.cached_tokens,
            routed_experts=np.concatenate(self.experts) if self.experts else None,
            timings={
                "queue_s": started - self.submitted,
                "prefill_s": self.prefill_s,
                "decode_s": max(now - started - self.prefill_s, 0.0),
            },
        )
