"""Engine checks: a request against an engine, an answer's experts, the tensors of an update."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy.typing as npt

from agentrl.engines.find import engines_with
from agentrl.errors import EngineError
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    RoutingShape,
    SamplingParams,
)


def experts_fault(completion: Completion, read: int, routing: RoutingShape | None) -> str:
    """How the experts that a completion tells are not those of its tokens; empty where they may be,
    or there are none.

    Args:
        completion: of an engine.
        read: tokens that the call has read, from ``GenerateRequest.experts_from`` on.
        routing: of the engine's ``info()``.
    """
    record = completion.routed_experts
    if record is None:
        return ""
    if routing is None:
        return "experts came back, and the engine's info() tells no routing of its model"
    if len(record) > read or (len(record) < read and completion.finish_reason != "abort"):
        return f"{read} tokens were read, the experts of {len(record)} came back"
    fault = routing.fault(record)
    return fault and f"the experts that came back are another model's: {fault}"


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
        EngineError: not retryable; names the request, the rule, the value and the remedy.
    """
    ids = request.token_ids
    sampling = request.sampling
    context = info.context_tokens
    problem = ""
    if ids.ndim != 1 or ids.size < 1 or ids.dtype.kind not in "iu":
        problem = (
            "token_ids must be one dimension of at least one integer, got "
            f"{ids.dtype} of shape {ids.shape}"
        )
    elif (wrong := first_outside(ids, info.vocab_size)) is not None:
        problem = (
            f"token_ids must lie in [0, {info.vocab_size}), the vocabulary of {info.model}, got "
            f"{wrong}; encode with the model's own tokenizer"
        )
    elif ids.size + sampling.max_new_tokens > context:
        problem = (
            f"prompt and max_new_tokens must fit the engine's context_tokens={context}, got "
            f"{ids.size} + "
            f"{sampling.max_new_tokens}; shorten one, or raise EnginePlace.context_tokens"
        )
    elif not 0 <= request.num_alternatives <= info.vocab_size:
        problem = (
            f"num_alternatives must lie between 0 and the vocabulary's {info.vocab_size}, got "
            f"{request.num_alternatives}; ask for fewer"
        )
    elif request.media and not images:
        problem = (
            f"engine {info.name!r} with {info.model} takes no images, got {len(request.media)}; "
            f"use a model that sees, and the engine {engines_with('returns_ids', 'images')}"
        )
    elif [span.sha256 for span in request.media] != [
        image.sha256 for image in request.images
    ]:
        problem = (
            "images must be those of media, one each, got "
            f"{len(request.images)} for {len(request.media)}"
        )
    elif sampling.stop and not stop_strings:
        problem = (
            f"engine {info.name!r} was built without a way to decode, so it cannot match stop "
            f"strings, got {sampling.stop}; use stop_token_ids, or set rollout.stop, by which it "
            "is built with one (EnginePlace.stop_strings, decode)"
        )
    elif sampling.json_schema and not info.grammars:
        problem = (
            f"engine {info.name!r} has no grammars, so it cannot force a completion to fit "
            f"json_schema, got {sampling.json_schema:.80}; ask for it in words"
        )
    if problem:
        raise EngineError(f"request {request.request_id!r}: {problem}", retryable=False)


def chosen(sampling: SamplingParams, *names: str) -> dict[str, Any]:
    """Those of some parameters that differ from their defaults, as JSON has them: a server is not
    sent what is switched off."""
    plain = SamplingParams(sampling.max_new_tokens)
    given = {name: getattr(sampling, name) for name in names}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value != getattr(plain, name)
    }


class PutTensors:
    """What an update has put so far, held against the tensors of the model.

    Args:
        shapes: of each tensor that must be put, by its Hugging Face name.
        optional: of those that may be put too.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        optional: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.names: set[str] = set()
        self._shapes = shapes
        self._optional = optional or {}

    def fault(self, name: str, shape: tuple[int, ...]) -> str:
        """Why a tensor cannot be put; empty where it can, and counts as put."""
        wanted = self._shapes.get(name, self._optional.get(name))
        if wanted is None:
            return (
                f"the model has no tensor {name!r}; its names are like "
                f"{next(iter(self._shapes), '')!r}"
            )
        if shape != wanted:
            return (
                f"{name} must have shape {wanted}, got {shape}; send the whole tensor under "
                "its Hugging Face name"
            )
        self.names.add(name)
        return ""

    def missing(self) -> str:
        """What is missing before an update can be committed; empty where all is there."""
        left = [name for name in self._shapes if name not in self.names]
        if not left:
            return ""
        return (
            f"{len(left)} of {len(self._shapes)} tensors were not put, first {left[0]!r}; put "
            "every tensor before commit"
        )


def require_new(request: GenerateRequest, in_flight: Container[str]) -> None:
    """Raises an EngineError where another request in flight has the same id."""
    if request.request_id in in_flight:
        raise EngineError(
            f"request_id {request.request_id!r} is already in flight; ids must be unique",
            retryable=False,
        )


def first_outside(ids: npt.NDArray[Any], vocab_size: int) -> int | None:
    """The first of ``ids`` ``[n]`` that is no id of the vocabulary."""
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    return int(outside[0]) if outside.size else None
