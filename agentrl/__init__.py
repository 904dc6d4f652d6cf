"""agentrl trains language-model agents by reinforcement learning over multi-turn tool use.

The names below are loaded when they are first used, so that ``import agentrl`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.config import RunConfig, load_config
    from agentrl.envs import Env, EnvSpec, EpisodeView, Rubric, ToolEnv
    from agentrl.errors import AgentRLError
    from agentrl.run.trainer import Summary, Trainer
    from agentrl.tools import Tool, tool
    from agentrl.types import Message, Task, Trajectory

__all__ = [
    "AgentRLError",
    "Env",
    "EnvSpec",
    "EpisodeView",
    "Message",
    "Rubric",
    "RunConfig",
    "Summary",
    "Task",
    "Tool",
    "ToolEnv",
    "Trainer",
    "Trajectory",
    "load_config",
    "tool",
]

_HOMES = {
    "agentrl.envs": ("Env", "EnvSpec", "EpisodeView", "Rubric", "ToolEnv"),
    "agentrl.errors": ("AgentRLError",),
    "agentrl.config": ("RunConfig", "load_config"),
    "agentrl.run.trainer": ("Summary", "Trainer"),
    "agentrl.tools": ("Tool", "tool"),
    "agentrl.types": ("Message", "Task", "Trajectory"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'agentrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
