"""Environments: the world of one episode, its scoring and the check of its contract."""

from __future__ import annotations

from agentrl.envs.async_env import ENV_THREADS, AsyncEnv, build_env, call_env
from agentrl.envs.check import check_env, env_findings
from agentrl.envs.contract import Finding, observation_findings
from agentrl.envs.env import Env
from agentrl.envs.env_spec import EnvSpec
from agentrl.envs.rewards import exact_answer, stated_answer
from agentrl.envs.rubric import RewardFn, Rubric
from agentrl.envs.score import Score
from agentrl.envs.tool_env import ToolEnv
from agentrl.envs.view import EpisodeView

__all__ = [
    "ENV_THREADS",
    "AsyncEnv",
    "Env",
    "EnvSpec",
    "EpisodeView",
    "Finding",
    "RewardFn",
    "Rubric",
    "Score",
    "ToolEnv",
    "build_env",
    "call_env",
    "check_env",
    "env_findings",
    "exact_answer",
    "observation_findings",
    "stated_answer",
]
