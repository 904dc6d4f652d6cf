"""Tiny random models, and requests to engines made of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from agentrl.engines.base import PauseMode
from agentrl.engines.torch import TorchEngine
from agentrl.engines.torch.sampling import uniforms
from agentrl.types import GenerateRequest, SamplingParams

VOCAB = 61

ROUNDING = 1e-4
"""How far a sampled token's logprob in float32 may lie from its float64 value, on any processor
(``test_rounding.py``).
"""


@dataclass(frozen=True)
class TinyModel:
    """A transformers model with what the engine is built from."""

    module: Any
    config: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """As its folder holds them."""
        return dict(revert_weight_conversion(self.module, self.module.state_dict()))

    @cached_property
    def exact(self) -> Any:
        """The same model in float64; transformers computes norms and rotary angles in float32 there
        too.
        """
        module = copy.deepcopy(self.module).double()
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")  # the others know no float64
        return module

    def logprobs(self, ids: np.ndarray, first: int, temperature: float = 1.0) -> np.ndarray:
        """Transformers' own log p of ``ids[first:]`` in float64, each given the ids before it."""
        chosen = torch.from_numpy(ids[first:].astype(np.int64))
        logprobs = all_logprobs(self.exact, ids, temperature)[first - 1 : -1]
        return logprobs.gather(1, chosen[:, None])[:, 0].numpy()


def all_logprobs(module: Any, ids: np.ndarray, temperature: float = 1.0) -> Tensor:
    """``[T, V]`` log p of every next token, the softmax in float64."""
    with torch.no_grad():
        logits: Tensor = (
            module(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].double()
        )
    return (logits / temperature).log_softmax(-1)


def make_model(architecture: str = "qwen3", *, seed: int = 0, **settings: Any) -> TinyModel:
    """A model of a family by its ``model_type``; ``settings`` go to its configuration as they
    are.
    """
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "initializer_range": 0.3,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    } | settings
    torch.manual_seed(seed)
    # None: left to the family
    shape = {name: value for name, value in shape.items() if value is not None}
    config = transformers.AutoConfig.for_model(architecture, **shape)
    module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:  # gains of 1 and biases of 0 would hide a missing one
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return TinyModel(module, config.to_dict())


def request(
    ids: np.ndarray | list[int],
    *,
    name: str = "r",
    session: str | None = None,
    seed: int = 0,
    **sampling: Any,
) -> GenerateRequest:
    extra = {
        key: sampling.pop(key)
        for key in ("min_version", "deadline_s", "media")
        if key in sampling
    }
    params = SamplingParams(**{"max_new_tokens": 8} | sampling)
    array = np.array(ids, dtype=np.int32)
    return GenerateRequest(
        name, session if session is not None else name, array, params, seed, **extra
    )


def sampled(completion: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logprobs of a completion, all versions together."""
    ids = [segment.token_ids for segment in completion.segments]
    logprobs = [segment.logprobs for segment in completion.segments]
    return np.concatenate([np.zeros(0, np.int32), *ids]), np.concatenate(
        [np.zeros(0, np.float32), *logprobs]
    )


def random_ids(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, size).astype(np.int32)


def publish(
    engine: TorchEngine,
    version: int,
    tensors: Mapping[str, Tensor],
    mode: PauseMode = "retract",
) -> None:
    """A whole weight update."""
    engine.pause(mode)
    session = engine.begin_update(version)
    for name, tensor in tensors.items():
        session.put(name, tensor)
    session.commit()
    engine.resume()


def margin(
    model: TinyModel, history: np.ndarray, seed: int, temperature: float = 1.0
) -> float:
    """How far the number that draws the token after ``history`` lies from the nearest end of a
    token's interval.

    Rounding moves these ends by at most the largest error of a logprob, because the probabilities
    sum to 1.
    """
    ends = np.cumsum(all_logprobs(model.exact, history, temperature)[-1].exp().numpy())
    drawn = uniforms(np.array([seed], dtype=np.uint64), np.array([history.size]))[0]
    return float(np.abs(ends - drawn).min())


def same_draws(
    model: TinyModel,
    prompt: np.ndarray,
    seed: int,
    one: Any,
    other: Any,
    temperature: float = 1.0,
) -> bool:
    """Whether two completions are of the same draws: equal ids, or apart first where a draw is
    within rounding of another token."""
    ids, others = sampled(one)[0], sampled(other)[0]
    if ids.tolist() == others.tolist():
        return True
    first = next(at for at in range(ids.size) if at >= others.size or ids[at] != others[at])
    return (
        margin(model, np.concatenate([prompt, ids[:first]]), seed, temperature) <= ROUNDING
    )
