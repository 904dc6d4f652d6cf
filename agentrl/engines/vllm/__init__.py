"""VLLMEngine: generation on vLLM servers, started here or given (docs/vllm.md)."""

from __future__ import annotations

from typing import Any

from agentrl.engines.vllm.vllm_spec import VLLMEngineSpec
from agentrl.types.user_code.load import load_object

__all__ = ["VLLMEngine", "VLLMEngineSpec"]


def __getattr__(name: str) -> Any:
    """Imports the engine only when it is asked for: a specification costs nothing."""
    if name == "VLLMEngine":
        return load_object("agentrl.engines.vllm.engine:VLLMEngine")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
