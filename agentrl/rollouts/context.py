"""Episode context: the parts that the episodes of one host share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, cast

from agentrl.engines.base import RolloutEngine
from agentrl.engines.openai import OpenAIEngine
from agentrl.envs import EnvSpec, Rubric
from agentrl.render import Renderer
from agentrl.rollouts.rollout_spec import RolloutSpec
from agentrl.sandbox import SandboxPool
from agentrl.tools.parsers import ToolCallParser, parser_for


class HostService(Protocol):
    """A service that the drivers of one host share, such as the endpoint of agent programs."""

    async def close(self) -> None:
        """Frees the service, after every episode of the host has ended."""
        ...


Service = TypeVar("Service", bound=HostService)


class PhaseSemaphores:
    """Bounds on the episodes in each phase of one event loop.

    Each semaphore bounds one phase and is acquired in that loop alone.

    Args:
        preparing: episodes that build and reset their environment at once.
        running: episodes that play at once, those that prepare included.
        scoring: episodes whose rubric runs at once.
    """

    def __init__(self, preparing: int = 1, running: int = 1, scoring: int = 1) -> None:
        self.preparing = asyncio.Semaphore(preparing)
        self.running = asyncio.Semaphore(running)
        self.scoring = asyncio.Semaphore(scoring)


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """A ``RolloutSpec`` after its parts are built, shared by the episodes of one host.

    Args:
        spec: the specification of these parts.
        engine: generates completions.
        renderer: converts messages to tokens; None for an engine that takes messages.
        parser: converts text to an assistant's message.
        rubric: scores an episode.
        sandboxes: the host's pool.
        services: the services that drivers share, by key; :meth:`service` fills it.
        told: what was logged once and is not logged again for other episodes.
    """

    spec: RolloutSpec
    engine: RolloutEngine
    renderer: Renderer | None
    parser: ToolCallParser
    rubric: Rubric
    sandboxes: SandboxPool | None = None
    services: dict[Hashable, HostService] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, spec: RolloutSpec, engine: RolloutEngine, *, sandboxes: int = 0
    ) -> EpisodeContext:
        """Builds the parts of a specification; whatever plays episodes gets them here.

        Args:
            spec: names the parts.
            engine: generates completions.
            sandboxes: lent at one time; with 0 there is no pool, and each environment makes its
                own.

        Raises:
            AgentRLError: a part cannot be built.
        """
        renderer = None if spec.renderer is None else spec.renderer.build()
        sandbox = spec.env.sandbox if isinstance(spec.env, EnvSpec) else None
        return cls(
            spec,
            engine,
            renderer,
            parser_for(renderer, spec.parser),
            spec.rubric.build(),
            SandboxPool(sandbox, max_running=sandboxes) if sandbox and sandboxes else None,
        )

    def service(
        self, make: Callable[[RolloutEngine], Service], *, key: Hashable = None
    ) -> Service:
        """The host's only ``make(engine)``, created at its first use; by default it is known by
        ``make`` itself.
        """
        key = key or make
        if key not in self.services:
            self.services[key] = make(self.engine)
        return cast(Service, self.services[key])

    def of_agent(self, agent: str) -> EpisodeContext:
        """The parts that generate an agent's turns: these, or those of its own server.

        Raises:
            ConfigError: the variable that is to hold the server's key is not set.
        """
        own = self.spec.agents.get(agent)
        if own is None or own.engine == "policy":
            return self
        openai, running = own.openai, self.spec.permits.running

        def serve(policy: RolloutEngine) -> OpenAIEngine:
            return OpenAIEngine(openai.server(max_concurrent=running))

        engine = self.service(serve, key=f"the server of {agent}")
        return replace(self, engine=engine, renderer=None)

    async def close(self) -> None:
        """Closes the services of this host, what the rubric holds on its loop, and the
        sandboxes.
        """
        for service in self.services.values():
            await service.close()
        await self.rubric.close()
        if self.sandboxes is not None:
            await self.sandboxes.close()
