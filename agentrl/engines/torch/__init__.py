"""TorchEngine: generation in this process with torch, no server (docs/engines.md)."""

from __future__ import annotations

from typing import Any

from agentrl.engines.torch.torch_spec import TorchEngineSpec
from agentrl.types.user_code.load import load_object

__all__ = ["TorchEngine", "TorchEngineSpec"]


def __getattr__(name: str) -> Any:
    """Imports torch only when the engine itself is asked for: a specification costs nothing."""
    if name == "TorchEngine":
        return load_object("agentrl.engines.torch.engine:TorchEngine")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
