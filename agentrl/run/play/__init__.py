"""Play: one episode, or many, of a stage: a policy, a driver, and who takes the trajectories."""

from __future__ import annotations

from agentrl.run.play.message_policies import ScriptedPolicy
from agentrl.run.play.player import Player

__all__ = ["Player", "ScriptedPolicy"]
