"""Rollout engines: one contract, and the engines that fulfil it."""

from __future__ import annotations

from agentrl.engines.base import (
    EngineControl,
    EngineHealth,
    EngineLayout,
    EngineNotice,
    EnginePlace,
    EnginePlan,
    EngineSpec,
    EngineTraits,
    HostedEngine,
    MessageEngine,
    PauseMode,
    ReadableEngine,
    RolloutEngine,
    Served,
    ServedDtype,
    SharedGpus,
    Tag,
    Transport,
    UpdateSession,
    WeightSender,
)

__all__ = [
    "EngineControl",
    "EngineHealth",
    "EngineLayout",
    "EngineNotice",
    "EnginePlace",
    "EnginePlan",
    "EngineSpec",
    "EngineTraits",
    "HostedEngine",
    "MessageEngine",
    "PauseMode",
    "ReadableEngine",
    "RolloutEngine",
    "Served",
    "ServedDtype",
    "SharedGpus",
    "Tag",
    "Transport",
    "UpdateSession",
    "WeightSender",
]
