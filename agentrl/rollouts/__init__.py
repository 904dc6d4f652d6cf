"""Rollouts: the multi-turn episode, its drivers, and the runner of many episodes."""

from __future__ import annotations

from agentrl.rollouts.batching import make_batch, turns_of
from agentrl.rollouts.context import EpisodeContext, PhaseSemaphores
from agentrl.rollouts.driver import DriverSpec, EpisodeDriver
from agentrl.rollouts.env_driver import EnvDriver
from agentrl.rollouts.episode import run_episode
from agentrl.rollouts.gc_pacing import paced_collector
from agentrl.rollouts.groups import (
    KILLS_WORKER,
    GroupOutcome,
    GroupRequest,
    cancelled_outcome,
)
from agentrl.rollouts.rollout_spec import (
    AgentSpec,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    RubricFactory,
    StagePermits,
)
from agentrl.rollouts.runner import EpisodeRunner
from agentrl.rollouts.states.snapshots import (
    EpisodeState,
    GroupState,
    NotResumable,
    SeatState,
)
from agentrl.rollouts.token_consistency import (
    assert_extends_context,
    assert_token_consistency,
)

__all__ = [
    "KILLS_WORKER",
    "AgentSpec",
    "DriverSpec",
    "EnvDriver",
    "EpisodeContext",
    "EpisodeDriver",
    "EpisodeKey",
    "EpisodeRunner",
    "EpisodeSettings",
    "EpisodeState",
    "GroupOutcome",
    "GroupRequest",
    "GroupState",
    "NotResumable",
    "PhaseSemaphores",
    "RolloutSpec",
    "RubricFactory",
    "SeatState",
    "StagePermits",
    "assert_extends_context",
    "assert_token_consistency",
    "cancelled_outcome",
    "make_batch",
    "paced_collector",
    "run_episode",
    "turns_of",
]
