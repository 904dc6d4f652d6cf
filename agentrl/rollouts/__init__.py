"""Rollout engines, the multi-turn loop, and the runner of many episodes."""

from __future__ import annotations

from agentrl.rollouts.batching import POLICY_ONLY, make_batch, turns_of
from agentrl.rollouts.collector import paced_collector
from agentrl.rollouts.demonstrations import demonstration_group, read_demonstration
from agentrl.rollouts.engine import (
    EngineControl,
    EngineHealth,
    EngineLayout,
    EngineNotice,
    PauseMode,
    RolloutEngine,
    Tag,
    UpdateSession,
)
from agentrl.rollouts.episode import run_episode
from agentrl.rollouts.golden import assert_golden_rule, assert_prefix
from agentrl.rollouts.parts import EpisodeParts, Permits
from agentrl.rollouts.player import Player, PlayerSpec
from agentrl.rollouts.preferences import check_pair, preference_group
from agentrl.rollouts.runner import EpisodeRunner, GroupOutcome, cancelled_outcome
from agentrl.rollouts.saved import SavedEpisode, SavedGroup, Unsaved
from agentrl.rollouts.spec import (
    EpisodeKey,
    EpisodeLimits,
    GroupRequest,
    RendererFactory,
    RolloutSpec,
    RubricFactory,
    StagePermits,
)

__all__ = [
    "POLICY_ONLY",
    "EngineControl",
    "EngineHealth",
    "EngineLayout",
    "EngineNotice",
    "EpisodeKey",
    "EpisodeLimits",
    "EpisodeParts",
    "EpisodeRunner",
    "GroupOutcome",
    "GroupRequest",
    "PauseMode",
    "Permits",
    "Player",
    "PlayerSpec",
    "RendererFactory",
    "RolloutEngine",
    "RolloutSpec",
    "RubricFactory",
    "SavedEpisode",
    "SavedGroup",
    "StagePermits",
    "Tag",
    "Unsaved",
    "UpdateSession",
    "assert_golden_rule",
    "assert_prefix",
    "cancelled_outcome",
    "check_pair",
    "demonstration_group",
    "make_batch",
    "paced_collector",
    "preference_group",
    "read_demonstration",
    "run_episode",
    "turns_of",
]
