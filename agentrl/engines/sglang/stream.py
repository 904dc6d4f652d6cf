"""Token stream: an answer as server-sent events, each with all tokens so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.engines.sglang.wire import scored
from agentrl.types import GenerateRequest


def tell_new(request: GenerateRequest, answer: Mapping[str, Any], told: int) -> int:
    """Tells who listens to a request what is new in its answer, as long as that grows; another
    answer than SGLang's is left to the reader of the last one.

    Args:
        request: what was asked.
        answer: so far.
        told: tokens before this answer.

    Returns:
        Tokens that are told by now.
    """
    meta = answer.get("meta_info")
    if not isinstance(meta, Mapping) or meta.get("finish_reason") is not None:
        return told
    ids, logprobs = scored((meta.get("output_token_logprobs") or [])[told:])
    if ids.size and request.on_tokens is not None:
        request.on_tokens(ids, logprobs)
    return told + ids.size
