"""A standing endpoint over a scripted policy, and an OpenAI client's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI

from agentrl.agent_server import StandaloneServer
from agentrl.envs import Rubric
from agentrl.types import Trajectory
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import context_of, length_reward, rollout_spec, scripted

HI = {"role": "user", "content": "hi"}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass
class Serving:
    """An endpoint, and the trajectories that it kept."""

    server: StandaloneServer
    engine: Any
    url: str
    http: httpx.AsyncClient
    kept: list[Trajectory] = field(default_factory=list)

    async def open(self, **body: Any) -> Episode:
        opened = (await self.http.post("/episodes", json=body)).raise_for_status().json()
        return Episode(
            self,
            opened["id"],
            AsyncOpenAI(base_url=opened["base_url"], api_key="any", max_retries=0),
        )


@dataclass
class Episode:
    """An open episode as its agent has it."""

    serving: Serving
    id: str
    client: AsyncOpenAI

    async def say(self, *messages: Mapping[str, Any], **settings: Any) -> Any:
        """The assistant's answer to a conversation."""
        made = await self.client.chat.completions.create(
            model="policy", messages=list(messages), **settings
        )
        return made.choices[0].message

    async def post(self, what: str, **body: Any) -> httpx.Response:
        return await self.serving.http.post(f"/episodes/{self.id}/{what}", json=body)

    async def end(self, **body: Any) -> Trajectory:
        """Ends the episode; what was kept of it."""
        (await self.post("end", **body)).raise_for_status()
        await self.client.close()
        return self.serving.kept[-1]


@asynccontextmanager
async def serving(
    script: Any,
    *,
    idle_timeout_s: float = 60.0,
    rubric: Rubric | None = None,
    token: str = "",
    strict_keys: bool = False,
    **settings: Any,
) -> AsyncIterator[Serving]:
    """An endpoint on a free port; ``script`` is a ScriptedEngine or what one is made of."""
    engine = script if hasattr(script, "generate") else scripted(script)
    spec = rollout_spec(**{"reward": length_reward} | settings)
    parts = context_of(spec, engine)
    if rubric is not None:
        parts = type(parts)(spec, engine, parts.renderer, parts.parser, rubric)
    kept: list[Trajectory] = []
    server = StandaloneServer(
        parts,
        kept.append,
        idle_timeout_s=idle_timeout_s,
        token=token,
        strict_keys=strict_keys,
    )
    try:
        url = await server.start()
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            yield Serving(server, engine, url, http, kept)
    finally:
        await server.close()


def answer(message: Any, *results: str) -> list[dict[str, Any]]:
    """The assistant's message as the client dumps it, and what its calls gave."""
    given = zip(message.tool_calls or [], results, strict=True)
    tools = [
        {"role": "tool", "tool_call_id": made.id, "content": result}
        for made, result in given
    ]
    return [message.model_dump(exclude_none=True), *tools]


def assert_true(trajectory: Trajectory, engine: Any) -> None:
    """Every turn's sequence is what the engine was given and made, by the engine's own account of
    its requests.
    """
    given = [request.token_ids.tolist() for request in engine.requests]
    for turn in trajectory.turns:
        sequence = trajectory.sequence(turn.index).tolist()
        made = sum(len(segment) for segment in turn.completion)
        assert sequence[: len(sequence) - made] in given


async def ended(served: Any) -> None:
    while not served.kept:
        await asyncio.sleep(0.01)
