"""What the episodes of one host share: the parts that a ``RolloutSpec`` is built into, and bounds on their stages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.envs import Rubric
from agentrl.render import Renderer
from agentrl.rollouts.engine import RolloutEngine
from agentrl.rollouts.spec import RolloutSpec
from agentrl.sandbox import SandboxPool
from agentrl.tools.parsers import ToolCallParser

if TYPE_CHECKING:
    from agentrl.rollouts.policy_server import PolicyServer

__all__ = ["EpisodeParts", "Permits"]


@dataclass(slots=True)
class Permits:
    """How many episodes may be in each stage of one event loop at once."""

    preparing: asyncio.Semaphore
    running: asyncio.Semaphore
    scoring: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class EpisodeParts:
    """A ``RolloutSpec`` with its parts built, shared by the episodes of one host.

    Args:
        spec: what they were built from.
        engine: what generates.
        renderer: messages to tokens; None for an engine that takes messages.
        parser: text to an assistant's message.
        rubric: what scores an episode.
        sandboxes: the host's pool.
        server: the host's endpoint, for episodes that ask for their turns.
    """

    spec: RolloutSpec
    engine: RolloutEngine
    renderer: Renderer | None
    parser: ToolCallParser
    rubric: Rubric
    sandboxes: SandboxPool | None = None
    server: PolicyServer | None = None
