"""Token consistency: a turn's sequence is exactly the ids that the engine was given and sampled.

The rule is "token in, token out": ids go to the engine, ids come back, and no text is encoded
again.
"""

from __future__ import annotations

from typing import NoReturn

from agentrl.engines.checks import experts_fault, first_outside
from agentrl.errors import TokenMismatchError
from agentrl.types import Completion, GenerateRequest, RoutingShape, SegmentKind
from agentrl.types.arrays import I32, common_prefix


def assert_token_consistency(
    request: GenerateRequest,
    completion: Completion,
    vocab_size: int,
    routing: RoutingShape | None = None,
) -> None:
    """Compares a completion with the engine's own token counts (docs/tokens.md).

    Args:
        request: the request that was sent.
        completion: the engine's completion.
        vocab_size: the vocabulary size of the engine's model.
        routing: of a mixture whose experts the engine tells.

    Raises:
        TokenMismatchError: the first rule that does not hold, with both values.
    """
    usage = completion.usage
    sampled = sum(map(len, completion.segments))
    sent = int(request.token_ids.size)
    length = sent + sampled
    if completion.request_id != request.request_id:
        _fail(request, f"the answer is for request {completion.request_id!r}")
    if usage.prompt_tokens != sent:
        _fail(request, f"{sent} ids were sent, the engine was given {usage.prompt_tokens}")
    if usage.completion_tokens != sampled:
        _fail(
            request, f"{sampled} ids came back, the engine made {usage.completion_tokens}"
        )
    # the last sampled token has no KV unless the engine has run it through the model
    if usage.kv_tokens is not None and usage.kv_tokens not in (length - 1, length):
        _fail(
            request,
            f"the sequence has {length} ids, the engine's KV cache {usage.kv_tokens}",
        )
    most = request.sampling.max_new_tokens
    if sampled > most:
        _fail(request, f"{sampled} ids came back, max_new_tokens was {most}")
    if fault := experts_fault(completion, length - 1 - request.experts_from, routing):
        _fail(request, fault)
    _assert_policy_segments(request, completion, vocab_size)


def _assert_policy_segments(
    request: GenerateRequest, completion: Completion, vocab_size: int
) -> None:
    # No token is older than those before it in the sequence, also across calls.
    previous = request.min_version
    for segment in completion.segments:
        if segment.kind is not SegmentKind.POLICY or segment.policy_version is None:
            _fail(request, f"a completion holds a segment of kind {segment.kind.name}")
        if segment.policy_version < previous:
            _fail(
                request, f"policy version fell from {previous} to {segment.policy_version}"
            )
        previous = segment.policy_version
        if (outside := first_outside(segment.token_ids, vocab_size)) is not None:
            _fail(
                request, f"id {outside} is outside the model's vocabulary of {vocab_size}"
            )


def assert_extends_context(request: GenerateRequest, previous: I32) -> None:
    """Checks that a request extends the sequence of the engine's earlier call.

    Args:
        request: the request to send.
        previous: ``[n]`` ids of the earlier sequence.

    Raises:
        TokenMismatchError: the first position that differs.
    """
    n = previous.size
    ids = request.token_ids
    if ids.size <= n:
        _fail(request, f"it has {ids.size} ids, the sequence that it extends has {n}")
    at = common_prefix(ids, previous)
    if at < n:
        _fail(
            request, f"id {int(ids[at])} at {at} where the sequence has {int(previous[at])}"
        )


def _fail(request: GenerateRequest, what: str) -> NoReturn:
    raise TokenMismatchError(
        f"token consistency violated by request {request.request_id!r}: {what}"
    )
