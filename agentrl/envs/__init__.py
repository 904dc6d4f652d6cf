"""Environments: the world of one episode, its scoring and the check of its contract."""

from __future__ import annotations

from agentrl.envs.adapters.gymnasium_env import GymnasiumEnv
from agentrl.envs.adapters.openenv import OpenEnv
from agentrl.envs.adapters.textarena_env import TextArenaEnv
from agentrl.envs.async_env import ENV_THREADS, AsyncEnv, build_env, call_env, opened_env
from agentrl.envs.check import check_env, env_findings
from agentrl.envs.contract import Finding, observation_findings
from agentrl.envs.env import Env, solution_of
from agentrl.envs.env_spec import EnvSpec
from agentrl.envs.rewards import exact_answer, stated_answer
from agentrl.envs.rewards.reward_check import check_reward
from agentrl.envs.rubric import AnyRewardFn, RewardFn, Rubric
from agentrl.envs.score import Score, group_rewards, turn_rewards
from agentrl.envs.tool_env import ToolEnv
from agentrl.envs.user_env import ModelUser, ScriptedUser, User, UserEnv
from agentrl.envs.view import EpisodeView
from agentrl.envs.wrappers import (
    CutObservations,
    RewardShaping,
    TimeLimit,
    TokenLimit,
    TurnLimit,
    Wrapper,
    WrapperReference,
)

__all__ = [
    "ENV_THREADS",
    "AnyRewardFn",
    "AsyncEnv",
    "CutObservations",
    "Env",
    "EnvSpec",
    "EpisodeView",
    "Finding",
    "GymnasiumEnv",
    "ModelUser",
    "OpenEnv",
    "RewardFn",
    "RewardShaping",
    "Rubric",
    "Score",
    "ScriptedUser",
    "TextArenaEnv",
    "TimeLimit",
    "TokenLimit",
    "ToolEnv",
    "TurnLimit",
    "User",
    "UserEnv",
    "Wrapper",
    "WrapperReference",
    "build_env",
    "call_env",
    "check_env",
    "check_reward",
    "env_findings",
    "exact_answer",
    "group_rewards",
    "observation_findings",
    "opened_env",
    "solution_of",
    "stated_answer",
    "turn_rewards",
]
