"""The policy behind an OpenAI-compatible endpoint, for agents that bring their own loop."""

from __future__ import annotations

from agentrl.rollouts.policy_server.player import ServedPlayer
from agentrl.rollouts.policy_server.program import ProgramSpec
from agentrl.rollouts.policy_server.served import ServedEpisode
from agentrl.rollouts.policy_server.server import PolicyServer
from agentrl.rollouts.policy_server.standing import StandingServer

__all__ = ["PolicyServer", "ProgramSpec", "ServedEpisode", "ServedPlayer", "StandingServer"]
