"""Answers of vLLM 0.32 to ``/inference/v1/generate`` as they were recorded, and a client."""

from __future__ import annotations

from typing import Any

from agentrl.engines import EnginePlace
from agentrl.engines.servers.client import WeightLabels
from agentrl.engines.vllm import VLLMEngineSpec
from agentrl.engines.vllm.client import VLLMClient

Tokens = list[tuple[int, float]]


def vllm_client(
    url: str, model: str = "model", seeds: dict[str, int] | None = None
) -> VLLMClient:
    """A client of a server at ``url`` whose weights are called ``own.N``."""
    spec = VLLMEngineSpec(urls=(url,))
    place = EnginePlace(model, context_tokens=64)
    return VLLMClient("server 0", url, place, spec, WeightLabels("own"), seeds or {})


def position(sampled: tuple[int, float], *others: tuple[int, float]) -> dict[str, Any]:
    """A token, the sampled one first among those that are named with it."""
    named = [{"token_id": token, "logprob": value} for token, value in (sampled, *others)]
    return {**named[0], "top_logprobs": named}


def answer(**changes: Any) -> dict[str, Any]:
    """``changes`` go into its choice."""
    choice = {
        "index": 0,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [250, 256, 8, 204],
        "weight_versions": [
            {"version": "own.3", "start": 0, "end": 1},
            {"version": "own.4", "start": 1, "end": 4},
        ],
        "logprobs": {
            "content": [
                position((250, -4.203820), (23, -4.015993), (156, -4.051378)),
                position((256, -5.921370), (250, -4.000407), (156, -4.390670)),
                position((8, -5.166537), (129, -4.451293), (105, -4.640083)),
                position((204, -5.646010), (267, -4.043941), (23, -4.384630)),
            ]
        },
    }
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    return {"choices": [choice | changes], "usage": usage, "prompt_token_ids": None}


def events() -> list[dict[str, Any]]:
    """The same as a stream: a token in each event, then the usage."""
    whole = answer()
    [choice] = whole["choices"]
    told = [
        {
            "choices": [
                {
                    "index": 0,
                    "finish_reason": None,
                    "token_ids": [token],
                    "logprobs": {"content": [content]},
                    "weight_versions": None,
                }
            ],
            "usage": None,
        }
        for token, content in zip(
            choice["token_ids"], choice["logprobs"]["content"], strict=True
        )
    ]
    last = told[-1]["choices"][0]
    last |= {
        key: choice[key] for key in ("finish_reason", "stop_reason", "weight_versions")
    }
    return [*told, {"choices": [], "usage": whole["usage"]}]
