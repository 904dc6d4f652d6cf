"""TorchEngine: generation in this process with torch, no server (docs/engines.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.engines.torch.torch_spec import TorchEngineSpec

if TYPE_CHECKING:
    from agentrl.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine", "TorchEngineSpec"]


def __getattr__(name: str) -> object:
    """Imports torch only when the engine itself is asked for, so that a specification costs nothing."""
    if name == "TorchEngine":
        from agentrl.engines.torch.engine import TorchEngine

        return TorchEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
