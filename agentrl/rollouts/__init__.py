"""Rollout engines, the multi-turn loop, and the runner of many episodes."""

from __future__ import annotations

from agentrl.rollouts.engine import (
    EngineControl,
    EngineHealth,
    EngineLayout,
    PauseMode,
    RolloutEngine,
    Tag,
    UpdateSession,
)

__all__ = ["EngineControl", "EngineHealth", "EngineLayout", "PauseMode", "RolloutEngine", "Tag", "UpdateSession"]
