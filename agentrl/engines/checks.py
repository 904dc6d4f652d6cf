"""What every engine refuses before anything runs."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from agentrl.errors import EngineError
from agentrl.types import EngineInfo, GenerateRequest

__all__ = ["check_request", "first_outside"]


def check_request(
    request: GenerateRequest, info: EngineInfo, *, stop_strings: bool, images: bool = False
) -> None:
    """Checks a request against the engine that is to serve it.

    Args:
        request: what is asked.
        info: the engine's vocabulary and context.
        stop_strings: whether the engine can match stop strings.
        images: whether it takes images.

    Raises:
        EngineError: not retryable; names the request, the rule, the value and the mend.
    """
    ids, sampling, context = request.token_ids, request.sampling, info.context_tokens
    problem = ""
    if ids.ndim != 1 or ids.size < 1 or ids.dtype.kind not in "iu":
        problem = f"token_ids must be one dimension of at least one integer, got {ids.dtype} of shape {ids.shape}"
    elif (wrong := first_outside(ids, info.vocab_size)) is not None:
        problem = (
            f"token_ids must lie in [0, {info.vocab_size}), the vocabulary of {info.model}, got {wrong}; "
            "encode with the model's own tokenizer"
        )
    elif ids.size + sampling.max_new_tokens > context:
        problem = (
            f"prompt and max_new_tokens must fit the engine's context_tokens={context}, got {ids.size} + "
            f"{sampling.max_new_tokens}; shorten one, or raise rollout.context_tokens"
        )
    elif request.media and not images:
        problem = (
            f"engine {info.name!r} with {info.model} takes no images, got {len(request.media)}; use "
            "rollout.engine: sglang and a model that sees"
        )
    elif (request.media or request.images) and [span.sha256 for span in request.media] != [
        image.sha256 for image in request.images
    ]:
        problem = f"images must be those of media, one each, got {len(request.images)} for {len(request.media)}"
    elif sampling.stop and not stop_strings:
        problem = (
            f"engine {info.name!r} was built without a way to decode, so it cannot match stop strings, got "
            f"{sampling.stop}; use stop_token_ids, or give its specification decode="
        )
    elif sampling.json_schema and not info.grammars:
        problem = (
            f"engine {info.name!r} has no grammars, so it cannot force a completion to fit json_schema, got "
            f"{sampling.json_schema:.80}; ask for it in words"
        )
    if problem:
        raise EngineError(f"request {request.request_id!r}: {problem}", retryable=False)


def first_outside(ids: npt.NDArray[Any], vocab_size: int) -> int | None:
    """The first of ``ids`` ``[n]`` that is no id of the vocabulary."""
    if not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < vocab_size):
        return None
    return int(ids[(ids < 0) | (ids >= vocab_size)][0])
