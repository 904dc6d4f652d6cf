"""Model check: a server's own account of its model and of its logprobs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from agentrl.engines.base import EnginePlace
from agentrl.engines.vllm.launch_words import REQUIRED
from agentrl.engines.vllm.wire import PROBE_TEMPERATURE
from agentrl.engines.weights import read_config
from agentrl.errors import DataError
from agentrl.types.arrays import F32

_NEAR = 1e-4
"""Nats by which two logprobs of one meaning differ at most; both come of the same logits."""


def model_problem(place: EnginePlace, config: Mapping[str, Any]) -> str:
    """The first fault of a server, and its remedy; empty for a sound one.

    A given server may hold any weights of this model: the first update replaces them.

    Args:
        place: what it should serve.
        config: its ``vllm_config``.
    """
    served = config.get("model_config") or {}
    own = read_config(place.model)
    other = own
    with suppress(DataError):
        # of another machine, or under another path: the first digests tell its tensors
        other = read_config(str(served.get("model")))
    for key in ("architectures", "vocab_size", "hidden_size", "num_hidden_layers"):
        if other.get(key) != own.get(key):
            return (
                f"serves another model: {key} is {other.get(key)!r}, {place.model} has "
                f"{own.get(key)!r}; start it with this model"
            )
    dtype = str(served.get("dtype")).removeprefix("torch.")
    if dtype != place.dtype:
        return (
            f"computes in {dtype}, EnginePlace.dtype={place.dtype!r} is wanted; start it with "
            f"--dtype {place.dtype}, or change the setting"
        )
    if place.stop_strings and served.get("skip_tokenizer_init"):
        return (
            "has no tokenizer for the stop strings of rollout.stop or of an agent's requests; "
            "start it without --skip-tokenizer-init"
        )
    longest = int(served.get("max_model_len") or 0)
    if longest < place.context_tokens:
        return (
            f"takes {longest} tokens, EnginePlace.context_tokens={place.context_tokens} needs "
            f"more; start it with --max-model-len {place.context_tokens}, or lower it"
        )
    return ""


def seed_problem(url: str, config: Mapping[str, Any], seeds: dict[str, int]) -> str:
    """Why a server would repeat the tokens of another one, and what to do; empty where it does not.

    Args:
        url: the server's.
        config: its ``vllm_config``.
        seeds: with which servers draw, by URL; gets this one's.
    """
    seed = int((config.get("model_config") or {}).get("seed") or 0)
    alike = [other for other, theirs in seeds.items() if theirs == seed and other != url]
    seeds[url] = seed
    if not alike:
        return ""
    return (
        f"draws with --seed {seed} as {alike[0]} does, so that siblings would repeat each other's "
        "tokens; start each server with a --seed of its own"
    )


def meaning_problem(plain: F32, cut: F32) -> str:
    """Why a server's logprobs are not log-softmax(logits / temperature) over the whole vocabulary
    before top-p and top-k, and what to do; empty where they are.

    Args:
        plain: ``[V]`` of a position, at temperature 1 without top-p.
        cut: ``[V]`` of the same position at ``PROBE_TEMPERATURE`` and a top-p; NaN for what it cut.
    """
    told = np.isfinite(plain)
    kept = np.isfinite(cut)
    wide = plain[told].astype(np.float64)
    total = float(np.exp(wide).sum())
    scaled = plain.astype(np.float64) / PROBE_TEMPERATURE
    expected = scaled - np.log(np.exp(scaled[told]).sum())
    both = told & kept
    off = np.abs(expected - cut)[both].max(initial=0)
    if told.all() and kept.any() and abs(total - 1) <= _NEAR and off <= _NEAR:
        return ""
    return (
        "has logprobs of another meaning than log-softmax(logits / temperature) before top-p: at "
        f"temperature {PROBE_TEMPERATURE:g} with top-p, {int(both.sum())} of them differ by up to "
        f"{off:.3g}, and the probabilities of the {int(told.sum())} of {told.size} tokens that it "
        f"tells at temperature 1 sum to {total:.6g}; start it with {REQUIRED}"
    )
