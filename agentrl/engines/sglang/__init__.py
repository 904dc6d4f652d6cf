"""SGLangEngine: generation on SGLang servers, started here or given (docs/sglang.md)."""

from __future__ import annotations

from agentrl.engines.sglang.engine import SGLangEngine
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.update import ServerUpdate, WeightSender
from agentrl.engines.sglang.weights import ServedDtype, WeightArray, open_weights, write_weights

__all__ = [
    "SGLangEngine",
    "SGLangEngineSpec",
    "ServedDtype",
    "ServerUpdate",
    "WeightArray",
    "WeightSender",
    "open_weights",
    "write_weights",
]
