"""The picklable description of a TorchEngine; it imports no torch until it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.engines.torch.engine import TorchEngine

__all__ = ["TorchEngineSpec"]


@dataclass(frozen=True, slots=True)
class TorchEngineSpec:
    """How to build a TorchEngine, wherever it is to live.

    Args:
        model_path: a Hugging Face folder: ``config.json`` and ``*.safetensors``.
        dtype: of weights and KV; logits and sampling are always float32.
        device: ``cpu`` or a CUDA device such as ``cuda:0``.
        context_tokens: the longest sequence, prompt and completion together.
        max_running: requests decoded at once; more of them wait in a queue.
        kv_tokens: positions of KV memory in all. Each running request has ``context_tokens`` of it; what is left
            parks waiting sessions, least recently used evicted first. None parks as much as is running.
        deterministic: fixed shapes, and KV that depends on the ids alone, so that a request's tokens and logprobs
            are equal to the last bit whatever else the engine does (docs/engines.md).
        num_threads: of the engine's own thread in torch; None leaves torch's setting.
        decode: ids to text, needed for stop strings only; must itself be picklable.

    Raises:
        ConfigError: a value outside its range, named.
    """

    model_path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    context_tokens: int = 1024
    max_running: int = 32
    kv_tokens: int | None = None
    deterministic: bool = False
    num_threads: int | None = None
    decode: Callable[[npt.NDArray[np.int32]], str] | None = None

    def __post_init__(self) -> None:
        rules = (
            (
                "model.dtype",
                self.dtype in ("float32", "bfloat16"),
                self.dtype,
                "'float32' or 'bfloat16'",
            ),
            ("rollout.context_tokens", self.context_tokens >= 2, self.context_tokens, "at least 2"),
            ("rollout.max_running", self.max_running >= 1, self.max_running, "at least 1"),
            (
                "rollout.num_threads",
                self.num_threads is None or self.num_threads >= 1,
                self.num_threads,
                ">= 1",
            ),
            (
                "rollout.kv_tokens",
                self.kv_tokens is None or self.kv_tokens >= self.context_tokens,
                self.kv_tokens,
                f"at least rollout.context_tokens={self.context_tokens}, one request's KV",
            ),
        )
        for name, holds, value, rule in rules:
            if not holds:
                raise ConfigError(
                    f"{name} must be {rule}, got {value!r}; change it in the configuration"
                )

    @property
    def num_rows(self) -> int:
        """Requests that run at once: ``max_running``, or fewer where ``kv_tokens`` holds no more."""
        if self.kv_tokens is None:
            return self.max_running
        return min(self.max_running, self.kv_tokens // self.context_tokens)

    @property
    def parked_tokens(self) -> int:
        """KV positions of waiting sessions outside the rows."""
        running = self.num_rows * self.context_tokens
        return running if self.kv_tokens is None else self.kv_tokens - running

    def build(self) -> TorchEngine:
        """Loads the model and starts the engine's thread.

        Raises:
            EngineError: the folder cannot be read, or holds a model that TorchEngine does not compute.
        """
        from agentrl.engines.torch.engine import TorchEngine

        return TorchEngine(self)
