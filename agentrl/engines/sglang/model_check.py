"""Model check: a server's own account of its model, held against the folder that it should
serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.engines.base import EnginePlace
from agentrl.engines.tensor_parallel import Shards, tensor_parallel_shards
from agentrl.engines.weights import read_config, tensor_shapes
from agentrl.errors import DataError

SPARE_POSITIONS = 8
"""SGLang refuses a prompt that leaves fewer than seven positions of its context; servers get these
in addition."""


_LIKE_LLAMA = ("llama", "qwen2", "qwen3")
_CPU_WIDTH = 32
"""Of a rank's part of an MLP on a CPU, a multiple of it."""


def model_problem(
    place: EnginePlace,
    info: Mapping[str, Any],
    served: Mapping[str, Any],
) -> str:
    """The first fault of a server, and its remedy; empty for a sound one.

    A given server may hold any weights of this model: the first update replaces them.

    Args:
        place: what it should serve.
        info: its ``/server_info``.
        served: its ``/model_info``.
    """
    config = read_config(place.model)
    own = tensor_shapes(Path(place.model))
    other, unknown = config, ""
    # of another machine, or under another path: the first digests that it tells name its tensors
    with suppress(DataError):
        other = read_config(str(info.get("model_path")))
        held = tensor_shapes(Path(str(info.get("model_path"))))
        unknown = next(
            (name for name in held if name not in own and name != "lm_head.weight"), ""
        )
    told = {key: served.get(key) for key in ("architectures", "model_type")}
    told = {key: value for key, value in told.items() if value is not None}
    shape = {
        key: other.get(key) for key in ("vocab_size", "hidden_size", "num_hidden_layers")
    }
    for key, value in (told | shape).items():
        if value != config.get(key):
            return (
                f"serves another model: {key} is {value!r}, {place.model} has {config.get(key)!r}; "
                "start it with this model"
            )
    if (dtype := _dtype(str(info.get("dtype")), config)) != place.dtype:
        return (
            f"computes in {dtype} (its --dtype is {info.get('dtype')!r}), EnginePlace.dtype="
            f"{place.dtype!r} is wanted; start it with --dtype {place.dtype}, or change the setting"
        )
    if preferred := served.get("preferred_sampling_params"):
        return (
            f"samples with {preferred} what a request leaves open, so that logprobs would be those "
            "of another distribution; start it without --preferred-sampling-params"
        )
    if place.stop_strings and info.get("skip_tokenizer_init"):
        return (
            "has no tokenizer for the stop strings of rollout.stop or of an agent's requests; "
            "start it without --skip-tokenizer-init"
        )
    if unknown:
        return f"serves another model: {place.model} has no {unknown!r}; start it with this model"
    longest = int(info.get("max_req_input_len") or 0)
    if longest and longest < place.context_tokens:
        return (
            f"takes prompts below {longest} tokens, "
            f"EnginePlace.context_tokens={place.context_tokens} "
            f"needs more; start it with --context-length {place.context_tokens + SPARE_POSITIONS} "
            "and as many --max-total-tokens, or lower it"
        )
    return ""


def rank_shards(
    place: EnginePlace, shapes: Mapping[str, tuple[int, ...]], num_ranks: int, device: str
) -> Shards:
    """What each rank of a server holds, as SGLang cuts it; none for one rank, and where that is not
    known.

    Args:
        place: the model that it serves.
        shapes: of the folder's tensors.
        num_ranks: of the server.
        device: of it.
    """
    config = read_config(place.model)
    if num_ranks == 1 or config.get("model_type") not in _LIKE_LLAMA:
        return ()
    kv_heads = int(config["num_key_value_heads"])
    if device == "cpu" and (
        kv_heads % num_ranks or int(config["intermediate_size"]) % (_CPU_WIDTH * num_ranks)
    ):
        # There it makes heads and widths up to what the ranks can share.
        return ()
    own = dict(shapes)
    if config.get("tie_word_embeddings"):
        own.pop("lm_head.weight", None)
    return tensor_parallel_shards(own, num_ranks, kv_heads=kv_heads)


def _dtype(asked: str, config: Mapping[str, Any]) -> str:
    """SGLang's reading of ``--dtype``: ``auto`` is the model's own, but 16 bits for float32."""
    if asked != "auto":
        return {"float": "float32", "half": "float16"}.get(asked, asked)
    own = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    narrow = "bfloat16" if str(config.get("model_type")).startswith("gemma") else "float16"
    return narrow if own == "float32" else own
