"""``POST /generate``: a request as SGLang wants it, and its answer as a Completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.engines.checks import chosen
from agentrl.engines.servers.http_client import RefusedError, ServerLostError
from agentrl.engines.servers.program.answer import Answer, Span
from agentrl.engines.servers.program.prompt import single_placeholders
from agentrl.engines.sglang.routed_experts import ServedExperts
from agentrl.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenUsage,
)

_NAN_MARK = "NaN happened"
"""SGLang ends a request with this stop string where it sampled an id that its vocabulary does not
have.
"""

_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def sampling_body(sampling: SamplingParams) -> dict[str, Any]:
    """``sampling_params`` of SGLang 0.5; what is switched off is left out."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        **chosen(
            sampling, "top_p", "top_k", "min_p", "stop_token_ids", "stop", "json_schema"
        ),
    }


def generate_body(
    request: GenerateRequest, rid: str, *, wants_experts: bool = False
) -> dict[str, Any]:
    """The whole body: ids in, ids and the logprobs of what is sampled out.

    The server makes an image's placeholders itself, of one that stands for them all.
    """
    body = {
        "rid": rid,
        "input_ids": single_placeholders(request),
        "sampling_params": sampling_body(request.sampling),
        "return_logprob": True,
    }
    if request.num_alternatives:
        body["top_logprobs_num"] = request.num_alternatives
    if wants_experts:
        body |= {
            "return_routed_experts": True,
            "routed_experts_start_len": request.experts_from,
        }
    if request.images:
        body["image_data"] = [image.data_uri() for image in request.images]
    return body


def score_body(token_ids: Sequence[int]) -> dict[str, Any]:
    """Asks for the logprobs of a prompt; SGLang samples at least one token behind it."""
    return {
        "input_ids": list(token_ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def read_score(
    answer: Mapping[str, Any], token_ids: Sequence[int], *, server: str
) -> npt.NDArray[np.float32]:
    """Logprobs ``[n - 1]`` of a prompt's tokens but the first.

    Raises:
        ServerLostError: a part is missing, has another shape or is of other tokens.
    """
    try:
        # The first token has a null, since nothing foretells it.
        triples = answer["meta_info"]["input_token_logprobs"][-(len(token_ids) - 1) :]
        ids, logprobs = scored(triples)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ServerLostError(
            f"{server} scored a prompt with no logprobs ({type(error).__name__}: {error})"
        ) from error
    if not np.array_equal(ids, token_ids[1:]):
        raise ServerLostError(f"{server} scored other tokens than it was sent")
    return logprobs


def scored(
    triples: Sequence[Sequence[Any]],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Ids and their logprobs; one that is null becomes NaN."""
    ids = np.asarray([triple[1] for triple in triples], np.int32)
    return ids, np.asarray([triple[0] for triple in triples], np.float32)


def read_answer(
    request: GenerateRequest,
    answer: Mapping[str, Any],
    *,
    server: str,
    version_of: Callable[[str], int],
    experts: ServedExperts | None = None,
) -> Completion:
    """The completion that an answer holds.

    Args:
        request: what was asked.
        answer: the parsed JSON object.
        server: its name, for errors.
        version_of: policy version of a server's weight label; raises where the label is not this
            engine's.
        experts: of the model, where the server tells them.

    Raises:
        ServerLostError: a part is missing or has another shape; or the server itself failed the
            request.
        RefusedError: it sampled outside the vocabulary, or a logprob is not a finite number.
        TokenMismatchError: its parts contradict each other.
    """
    who = f"{server}, request {request.request_id!r}"
    try:
        meta = answer["meta_info"]
        finish = meta["finish_reason"]
        reason = _FINISH[finish["type"]]
        status = int(finish.get("status_code") or 0)
        if reason == "abort" and status >= 400:
            raise ServerLostError(
                f"{who}: the server gave it up with status {status}: {finish.get('message')}"
            )
        matched = finish.get("matched")
        ids = np.asarray(answer["output_ids"], np.int32)
        named, logprobs = scored(meta.get("output_token_logprobs") or [])
        spans = _spans(meta, ids.size)
        alternatives = _alternatives(meta, request.num_alternatives)
        usage = TokenUsage(int(meta["prompt_tokens"]), int(meta["completion_tokens"]))
        cached = int(meta.get("cached_tokens") or 0)
        record = None if experts is None else experts.read(meta)
        timings = {"server_s": float(meta["e2e_latency"])} if "e2e_latency" in meta else {}
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ServerLostError(
            f"{who}: the answer is not one of SGLang's ({type(error).__name__}: {error}); is this "
            "its /generate?"
        ) from error
    if matched == _NAN_MARK:
        raise RefusedError(
            f"{who}: the server sampled from logits that are not numbers; look at the weights"
        )
    parts = Answer(
        ids=ids,
        named=named,
        logprobs=logprobs,
        alternatives=alternatives,
        spans=spans,
        finish_reason=reason,
        stop_string=matched if reason == "stop" and isinstance(matched, str) else None,
        usage=usage,
        cached_tokens=cached,
        timings=timings,
        experts=record,
    )
    return parts.completion(request, who, version_of)


def _alternatives(
    meta: Mapping[str, Any], count: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Ids and logprobs ``[n, count]`` of the most likely tokens, as the server sorted them."""
    rows = (
        [scored(triples) for triples in meta["output_top_logprobs"] or ()] if count else []
    )
    ids = np.array([ids for ids, _ in rows], np.int32).reshape(len(rows), count)
    return ids, np.array([logprobs for _, logprobs in rows], np.float32).reshape(ids.shape)


def _spans(meta: Mapping[str, Any], size: int) -> list[Span]:
    """Spans of weight versions; a server without them makes each answer with one version."""
    spans = meta.get("weight_versions")
    if spans is None:
        return [(str(meta["weight_version"]), 0, size)]
    return [
        (str(span["version"]), int(span["start"]), min(int(span["end"]), size))
        for span in spans
    ]
