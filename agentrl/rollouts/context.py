"""What the episodes of one host share: the parts that a ``RolloutSpec`` is built into, and bounds on their stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from agentrl.engines.base import RolloutEngine
from agentrl.envs import Rubric
from agentrl.render import Renderer
from agentrl.rollouts.rollout_spec import RolloutSpec
from agentrl.sandbox import SandboxPool
from agentrl.tools.parsers import ToolCallParser

__all__ = ["EpisodeContext", "HostService", "PhaseSemaphores"]


class HostService(Protocol):
    """What the drivers of one host share, such as the endpoint that agent programs ask."""

    async def close(self) -> None:
        """Frees it; every episode of the host has ended."""
        ...


Service = TypeVar("Service", bound=HostService)


@dataclass(slots=True)
class PhaseSemaphores:
    """How many episodes may be in each stage of one event loop at once."""

    preparing: asyncio.Semaphore
    running: asyncio.Semaphore
    scoring: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """A ``RolloutSpec`` with its parts built, shared by the episodes of one host.

    Args:
        spec: what they were built from.
        engine: what generates.
        renderer: messages to tokens; None for an engine that takes messages.
        parser: text to an assistant's message.
        rubric: what scores an episode.
        sandboxes: the host's pool.
        services: what the drivers of this host share, by what made it; filled by :meth:`service`.
    """

    spec: RolloutSpec
    engine: RolloutEngine
    renderer: Renderer | None
    parser: ToolCallParser
    rubric: Rubric
    sandboxes: SandboxPool | None = None
    services: dict[Callable[..., Any], HostService] = field(default_factory=dict)

    def service(self, make: Callable[[RolloutEngine], Service]) -> Service:
        """The host's own ``make(engine)``, made at its first use."""
        if make not in self.services:
            self.services[make] = make(self.engine)
        return cast(Service, self.services[make])

    async def close(self) -> None:
        """Ends the services of this host."""
        for service in self.services.values():
            await service.close()
