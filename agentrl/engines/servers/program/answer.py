"""Answer: the parts of a server's answer to a request, held against each other, as a Completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl.engines.servers.http_client import RefusedError
from agentrl.errors import TokenMismatchError
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
from agentrl.types.arrays import F32, I32

Span = tuple[str, int, int]
"""``(label, start, end)`` of the tokens that weights of a label made."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a server answered, whichever program it is.

    Args:
        ids: ``[n]`` of the sampled tokens.
        named: those that the logprobs are of.
        logprobs: ``[n]``.
        alternatives: ids and logprobs ``[n, K]`` of the most likely tokens.
        spans: of the weights that made the tokens.
        finish_reason: of the request.
        stop_string: that ended it.
        usage: tokens, as the server counts them.
        cached_tokens: of the prompt, in its prefix cache.
        timings: of its own.
        experts: of the tokens.
    """

    ids: I32
    named: I32
    logprobs: F32
    alternatives: tuple[I32, F32]
    spans: Sequence[Span]
    finish_reason: FinishReason
    stop_string: str | None
    usage: TokenUsage
    cached_tokens: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    experts: Experts | None = None

    def completion(
        self, request: GenerateRequest, who: str, version_of: Callable[[str], int]
    ) -> Completion:
        """The completion that it is.

        Args:
            request: what was asked.
            who: the server and its request, for errors.
            version_of: policy version of a server's weight label; raises where the label is not
                this engine's.

        Raises:
            RefusedError: a logprob is not a finite number.
            TokenMismatchError: its parts contradict each other.
        """
        if not np.isfinite(self.logprobs).all():
            first = self.logprobs[int(np.argmin(np.isfinite(self.logprobs)))]
            raise RefusedError(
                f"{who}: a logprob is {first}, which is not a finite number; the server's weights "
                "or arithmetic are broken (a dtype that overflows?), and nothing can be trained on "
                "it"
            )
        if contradiction := self._contradiction():
            raise TokenMismatchError(f"{who}: {contradiction}")
        others, other_logprobs = self.alternatives
        return Completion(
            request_id=request.request_id,
            segments=tuple(
                Segment(
                    SegmentKind.POLICY,
                    self.ids[start:end],
                    self.logprobs[start:end],
                    version_of(label),
                    side=alternatives_side(others[start:end], other_logprobs[start:end]),
                )
                for label, start, end in self.spans
                if end > start
            ),
            finish_reason=self.finish_reason,
            stop_string=self.stop_string,
            usage=self.usage,
            cached_tokens=self.cached_tokens,
            timings=self.timings,
            routed_experts=self.experts,
        )

    def _contradiction(self) -> str:
        """How the parts contradict each other; empty where they agree."""
        size = self.ids.size
        others, _ = self.alternatives
        if not np.array_equal(self.named, self.ids):
            return (
                f"{size} ids came back and {self.named.size} logprobs, which are not of the same "
                "tokens"
            )
        if others.shape[1] and len(others) != size:
            return f"{size} ids came back and alternatives to {len(others)}"
        starts = [start for _, start, _ in self.spans]
        if [*starts, size] != [0, *(end for _, _, end in self.spans)]:
            return f"the spans of weight versions {self.spans} do not cover its {size} ids"
        return ""
