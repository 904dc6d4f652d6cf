"""Agent server: an OpenAI-compatible endpoint over the policy, for agents with their own loop."""

from __future__ import annotations

from agentrl.agent_server.agent_program import AgentProgramSpec
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.server import PolicyServer, ServedDriver
from agentrl.agent_server.standalone import StandaloneServer

__all__ = [
    "AgentProgramSpec",
    "PolicyServer",
    "ServedDriver",
    "ServedEpisode",
    "StandaloneServer",
]
