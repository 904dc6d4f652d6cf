"""``POST /inference/v1/generate``: a request as vLLM wants it, and its answer as a Completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.engines.checks import chosen
from agentrl.engines.probe import probe_ids
from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.servers.program.answer import Answer
from agentrl.engines.servers.program.prompt import single_placeholders
from agentrl.errors import EngineError, TokenMismatchError
from agentrl.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenUsage,
)
from agentrl.types.arrays import F32, I32

_NO_LOGPROB = -9999.0
"""What vLLM writes for a logprob that is not a number, or of a token that top-p or top-k cut."""

PROBE_TEMPERATURE = 0.7
_PROBE_TOP_P = 0.9
_PROBE_TOKENS = 8

_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def sampling_body(sampling: SamplingParams) -> dict[str, Any]:
    """``sampling_params`` of vLLM; what is switched off is left out."""
    body = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        # Stop tokens are those that a request names; a grammar ends with the model's own.
        "ignore_eos": not sampling.json_schema,
        "detokenize": bool(sampling.stop),
        **chosen(sampling, "top_p", "top_k", "stop_token_ids", "stop"),
    }
    if sampling.json_schema:
        body["structured_outputs"] = {"json": sampling.json_schema}
    return body


def refusal_of(request: GenerateRequest) -> str:
    """What of a request vLLM cannot answer with logprobs of our meaning; empty where nothing is."""
    sampling = request.sampling
    if chosen(sampling, "min_p"):
        return (
            f"min_p must be 0 for vLLM (it cuts tokens before logprobs are taken), got "
            f"{sampling.min_p}; use top_p or top_k"
        )
    if request.num_alternatives and (cut := chosen(sampling, "top_p", "top_k")):
        return (
            f"num_alternatives={request.num_alternatives} needs top_p and top_k off for vLLM (the "
            f"tokens that they cut have no logprobs there), got {cut}; switch one of them off"
        )
    return ""


def generate_body(request: GenerateRequest, rid: str) -> dict[str, Any]:
    """The whole body: ids in, ids and the logprobs of what is sampled out.

    Raises:
        EngineError: see ``refusal_of``; not retryable.
    """
    if problem := refusal_of(request):
        raise EngineError(f"request {request.request_id!r}: {problem}", retryable=False)
    count = request.num_alternatives
    # one more than asked for: the sampled token takes a place of its own among them
    sampling = sampling_body(request.sampling) | {"logprobs": count + 1 if count else 0}
    body: dict[str, Any] = {
        "request_id": rid,
        "token_ids": single_placeholders(request),
        "sampling_params": sampling,
    }
    if request.images:
        body["return_token_ids"] = True
        body["content_parts"] = [
            {"type": "image_url", "url": image.data_uri()} for image in request.images
        ]
    return body


def score_body(before: Sequence[int], token: int) -> dict[str, Any]:
    """Asks for the logprob of a token behind others; vLLM samples one there too, and names as many
    tokens as were asked for, the sampled one first.
    """
    one = {"max_tokens": 1, "ignore_eos": True, "detokenize": False}
    ids = [token, token]
    return {
        "token_ids": list(before),
        "sampling_params": {**one, "logprob_token_ids": ids, "logprobs": len(ids)},
    }


def probe_bodies(vocab_size: int) -> list[dict[str, Any]]:
    """Asks twice for the logprobs of the whole vocabulary at one position: plainly, and at
    ``PROBE_TEMPERATURE`` with top-p.
    """
    plain = {
        "max_tokens": 1,
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": -1,
        # the same arithmetic both times
        "skip_reading_prefix_cache": True,
    }
    cut = {"temperature": PROBE_TEMPERATURE, "top_p": _PROBE_TOP_P}
    ids = list(probe_ids(vocab_size)[:_PROBE_TOKENS])
    return [{"token_ids": ids, "sampling_params": plain | extra} for extra in ({}, cut)]


def read_table(answer: Mapping[str, Any], vocab_size: int, *, server: str) -> F32:
    """Logprobs ``[V]`` of the first sampled position; NaN for tokens without one."""
    table = np.full(vocab_size, np.nan, np.float32)
    try:
        told = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        table[[one["token_id"] for one in told]] = _logprobs(told)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ServerLostError(
            f"{server} answered without logprobs ({type(error).__name__}: {error})"
        ) from error
    return table


def read_answer(
    request: GenerateRequest,
    answer: Mapping[str, Any],
    *,
    server: str,
    version_of: Callable[[str], int],
) -> Completion:
    """The completion that an answer holds; see ``Answer.completion`` for what else it raises.

    Args:
        request: what was asked.
        answer: the parsed JSON object.
        server: its name, for errors.
        version_of: policy version of a server's weight label.

    Raises:
        ServerLostError: a part is missing or has another shape.
        TokenMismatchError: the server made other ids of a prompt with images.
    """
    who = f"{server}, request {request.request_id!r}"
    try:
        [choice] = answer["choices"]
        content = choice["logprobs"]["content"] or []
        reason = _FINISH[choice["finish_reason"]]
        stop = choice["stop_reason"]
        usage = answer["usage"]
        parts = Answer(
            ids=np.asarray(choice["token_ids"], np.int32),
            named=np.asarray([token["token_id"] for token in content], np.int32),
            logprobs=_logprobs(content),
            alternatives=_alternatives(content, request.num_alternatives),
            spans=[
                (str(span["version"]), int(span["start"]), int(span["end"]))
                for span in choice["weight_versions"] or ()
            ],
            finish_reason=reason,
            stop_string=stop if reason == "stop" and isinstance(stop, str) else None,
            usage=TokenUsage(int(usage["prompt_tokens"]), int(usage["completion_tokens"])),
            cached_tokens=int(
                (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            ),
        )
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ServerLostError(
            f"{who}: the answer is not one of vLLM's ({type(error).__name__}: {error}); is this "
            "its /inference/v1/generate?"
        ) from error
    if request.images and answer.get("prompt_token_ids") != request.token_ids.tolist():
        raise TokenMismatchError(
            f"{who}: the server read other ids than the {request.token_ids.size} that it was sent, "
            "placeholders included; its image processor has other settings"
        )
    return parts.completion(request, who, version_of)


def joined(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The answer that the events of a stream add up to; the last of a choice says how it ended.
    Where there is none, the reader of answers says so.
    """
    choices = [choice for event in events for choice in event.get("choices") or ()]
    content: list[Mapping[str, Any]] = []
    ids: list[int] = []
    for choice in choices:
        content += (choice.get("logprobs") or {}).get("content") or []
        ids += choice.get("token_ids") or []
    ended: dict[str, Any] = {"stop_reason": None, "weight_versions": None}
    for choice in choices[-1:]:
        ended |= choice
    whole = {**ended, "token_ids": ids, "logprobs": {"content": content}}
    prompt = [
        event["prompt_token_ids"] for event in events if event.get("prompt_token_ids")
    ]
    usage = [event["usage"] for event in events if event.get("usage")]
    return {
        "choices": [whole],
        "usage": usage[-1] if usage else None,
        "prompt_token_ids": prompt[0] if prompt else None,
    }


def told(event: Mapping[str, Any]) -> tuple[I32, F32]:
    """Ids and logprobs of the tokens that an event of a stream brings."""
    content = [
        token
        for choice in event.get("choices") or ()
        for token in (choice.get("logprobs") or {}).get("content") or ()
    ]
    return np.asarray([token["token_id"] for token in content], np.int32), _logprobs(
        content
    )


def _logprobs(tokens: Sequence[Mapping[str, Any]]) -> F32:
    """``[n]``; NaN for what vLLM has no number for."""
    found = np.asarray([token["logprob"] for token in tokens], np.float32)
    found[found <= _NO_LOGPROB] = np.nan
    return found


def _alternatives(content: Sequence[Mapping[str, Any]], count: int) -> tuple[I32, F32]:
    """Ids and logprobs ``[n, count]`` of the most likely tokens, by falling logprob."""
    ids = np.zeros((len(content), count), np.int32)
    logprobs = np.zeros(ids.shape, np.float32)
    for row, token in enumerate(content if count else ()):
        by_logprob = sorted(token["top_logprobs"], key=lambda one: -one["logprob"])[:count]
        ids[row] = [one["token_id"] for one in by_logprob]
        logprobs[row] = [one["logprob"] for one in by_logprob]
    return ids, logprobs
