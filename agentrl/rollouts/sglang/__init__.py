"""SGLangEngine: generation on SGLang servers, started here or given (docs/sglang.md)."""

from __future__ import annotations

from agentrl.rollouts.sglang.engine import SGLangEngine
from agentrl.rollouts.sglang.spec import SGLangEngineSpec
from agentrl.rollouts.sglang.updates import ServerUpdate, WeightSender
from agentrl.rollouts.sglang.weights import ServedDtype, WeightArray, open_weights, write_weights

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
