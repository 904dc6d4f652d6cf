"""Rollout engines, the multi-turn loop, and the runner of many episodes."""

from __future__ import annotations

from agentrl.rollouts.batching import POLICY_ONLY, make_batch, turns_of
from agentrl.rollouts.context import EpisodeParts, Permits
from agentrl.rollouts.driver import Player, PlayerSpec
from agentrl.rollouts.episode import run_episode
from agentrl.rollouts.gc_pacing import paced_collector
from agentrl.rollouts.rollout_spec import (
    EpisodeKey,
    EpisodeLimits,
    GroupRequest,
    RendererFactory,
    RolloutSpec,
    RubricFactory,
    StagePermits,
)
from agentrl.rollouts.runner import EpisodeRunner, GroupOutcome, cancelled_outcome
from agentrl.rollouts.snapshots import SavedEpisode, SavedGroup, Unsaved
from agentrl.rollouts.token_consistency import assert_golden_rule, assert_prefix

__all__ = [
    "POLICY_ONLY",
    "EpisodeKey",
    "EpisodeLimits",
    "EpisodeParts",
    "EpisodeRunner",
    "GroupOutcome",
    "GroupRequest",
    "Permits",
    "Player",
    "PlayerSpec",
    "RendererFactory",
    "RolloutSpec",
    "RubricFactory",
    "SavedEpisode",
    "SavedGroup",
    "StagePermits",
    "Unsaved",
    "assert_golden_rule",
    "assert_prefix",
    "cancelled_outcome",
    "make_batch",
    "paced_collector",
    "run_episode",
    "turns_of",
]
