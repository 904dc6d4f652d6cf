"""Rollout engines: one contract, and the engines that fulfil it."""

from __future__ import annotations

from agentrl.engines.base import (
    EngineControl,
    EngineHealth,
    EngineLayout,
    EngineNotice,
    PauseMode,
    RolloutEngine,
    Tag,
    UpdateSession,
)

__all__ = [
    "EngineControl",
    "EngineHealth",
    "EngineLayout",
    "EngineNotice",
    "PauseMode",
    "RolloutEngine",
    "Tag",
    "UpdateSession",
]
