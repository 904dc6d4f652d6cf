"""SGLangEngine: generation on SGLang servers, started here or given (docs/sglang.md)."""

from __future__ import annotations

from typing import Any

from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.types.user_code.load import load_object

__all__ = ["SGLangEngine", "SGLangEngineSpec"]


def __getattr__(name: str) -> Any:
    """Imports the engine only when it is asked for: a specification costs nothing."""
    if name == "SGLangEngine":
        return load_object("agentrl.engines.sglang.engine:SGLangEngine")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
