"""The golden rule: a turn's sequence is exactly the ids that the engine was given and made in that call."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from agentrl.engines.checks import first_outside
from agentrl.errors import TokenMismatchError
from agentrl.types import Completion, GenerateRequest, SegmentKind

__all__ = ["assert_extends_context", "assert_token_consistency"]


def assert_token_consistency(
    request: GenerateRequest, completion: Completion, vocab_size: int
) -> None:
    """Holds a completion against the engine's own account (docs/tokens.md).

    Args:
        request: what was sent.
        completion: what came back.
        vocab_size: ids that the engine's model has.

    Raises:
        TokenMismatchError: naming the statement that does not hold, with both values.
    """
    account = completion.account
    sampled = sum(map(len, completion.segments))
    sent = int(request.token_ids.size)
    if completion.request_id != request.request_id:
        _broken(request, f"the answer is for request {completion.request_id!r}")
    if account.prompt_tokens != sent:
        _broken(request, f"{sent} ids were sent, the engine was given {account.prompt_tokens}")
    if account.completion_tokens != sampled:
        _broken(request, f"{sampled} ids came back, the engine made {account.completion_tokens}")
    # The last sampled token has no KV yet unless the engine ran it through; nothing else may be missing or extra.
    if account.kv_tokens is not None and account.kv_tokens not in (
        sent + sampled - 1,
        sent + sampled,
    ):
        _broken(
            request,
            f"the sequence has {sent + sampled} ids, the engine's KV cache {account.kv_tokens}",
        )
    if sampled > request.sampling.max_new_tokens:
        _broken(
            request,
            f"{sampled} ids came back, max_new_tokens was {request.sampling.max_new_tokens}",
        )
    previous = request.min_version
    for segment in completion.segments:
        if segment.kind is not SegmentKind.POLICY or segment.policy_version is None:
            _broken(request, f"a completion holds a segment of kind {segment.kind.name}")
        if segment.policy_version < previous:
            _broken(request, f"policy version fell from {previous} to {segment.policy_version}")
        previous = segment.policy_version
        if (outside := first_outside(segment.token_ids, vocab_size)) is not None:
            _broken(request, f"id {outside} is outside the model's vocabulary of {vocab_size}")


def assert_extends_context(request: GenerateRequest, previous: npt.NDArray[np.int32]) -> None:
    """Holds that a request extends the sequence that the engine made before.

    Raises:
        TokenMismatchError: the first position that differs.
    """
    n = previous.size
    if request.token_ids.size <= n:
        _broken(
            request, f"it has {request.token_ids.size} ids, the sequence that it extends has {n}"
        )
    differs = np.flatnonzero(request.token_ids[:n] != previous)
    if differs.size:
        at = int(differs[0])
        _broken(
            request,
            f"id {int(request.token_ids[at])} at {at} where the sequence has {int(previous[at])}",
        )


def _broken(request: GenerateRequest, what: str) -> NoReturn:
    raise TokenMismatchError(f"golden rule broken by request {request.request_id!r}: {what}")
