"""Answers of SGLang 0.5.23 and 0.5.18 to ``/generate`` as they were recorded, and requests for
them.
"""

from __future__ import annotations

from typing import Any

from agentrl.engines import EnginePlace
from agentrl.engines.servers.client import WeightLabels
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.sglang.client import SGLangClient
from agentrl.types import GenerateRequest, SamplingParams, frozen_ints

VOCAB = 300


def sglang_client(
    url: str, *, call_timeout_s: float = 60.0, model: str = "model"
) -> SGLangClient:
    """A client of a server at ``url`` whose weights are called ``own.N``."""
    spec = SGLangEngineSpec(call_timeout_s=call_timeout_s, update_timeout_s=call_timeout_s)
    place = EnginePlace(model, context_tokens=64)
    return SGLangClient("server 0", url, place, spec, WeightLabels("own"))


def request(**sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_new_tokens": 6} | sampling)
    return GenerateRequest("episode/0", "episode", frozen_ints([1, 2, 3]), params, seed=0)


def answer(**changes: Any) -> dict[str, Any]:
    """0.5.23; ``changes`` go into ``meta_info``."""
    meta = {
        "id": "episode/0#own.0",
        "finish_reason": {"type": "length", "length": 6},
        "prompt_tokens": 3,
        "weight_version": "own.4",
        "num_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [
            [-4.888582229614258, 253, None],
            [-5.204637050628662, 31, None],
            [-5.461483001708984, 281, None],
            [-4.393972873687744, 95, None],
            [-6.008896350860596, 235, None],
            [-5.6095099449157715, 192, None],
        ],
        "output_token_logprobs_length": 6,
        "reasoning_tokens": 0,
        "completion_tokens": 6,
        "cached_tokens": 2,
        "weight_versions": [
            {"version": "own.3", "start": 0, "end": 2},
            {"version": "own.4", "start": 2, "end": 6},
        ],
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": 0.023463438999897335,
        "response_sent_to_client_ts": 1795176846.0765557,
    }
    return {"output_ids": [253, 31, 281, 95, 235, 192], "meta_info": meta | changes}


def answer_without_spans() -> dict[str, Any]:
    """0.5.18."""
    whole = answer()
    del whole["meta_info"]["weight_versions"]
    return whole
