"""`agentrl serve policy` over a real SGLang server: an agent's turns and streams, with ids and
logprobs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI

from agentrl.agent_server import StandaloneServer
from agentrl.engines.sglang import SGLangEngine
from agentrl.render import RendererSpec
from agentrl.rollouts import EpisodeContext
from agentrl.tools.parsers import load_parser
from agentrl.types import Trajectory, concat_ids
from agentrl.weight_sync import HttpSender
from tests.engines.servers.broken_server import holds_back
from tests.engines.sglang.conftest import Neighbour
from tests.engines.sglang.models import CONTEXT, HuggingFace, publish
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import rollout_spec

pytestmark = pytest.mark.sglang

HI: Any = {"role": "user", "content": "Hello"}


@pytest.fixture
def engine(
    build: Callable[..., SGLangEngine], server: str, reference: HuggingFace
) -> SGLangEngine:
    engine = build(server, sender=HttpSender)
    publish(engine, reference, 1)
    return engine


@asynccontextmanager
async def served(
    engine: SGLangEngine, model: Path, kept: list[Trajectory], **sampling: Any
) -> AsyncIterator[tuple[AsyncOpenAI, httpx.AsyncClient, str]]:
    """An open episode: its agent's client, and by what it is ended."""
    limits = {
        "max_turn_tokens": 200,
        "max_prompt_tokens": 200,
        "max_response_tokens": 400,
        "context_tokens": CONTEXT,
    }
    spec = rollout_spec(**limits, **sampling)
    parts = EpisodeContext(
        spec,
        engine,
        RendererSpec(str(model)).build(),
        load_parser("hermes"),
        spec.rubric.build(),
    )
    server = StandaloneServer(parts, kept.append)
    url = await server.start()
    try:
        async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
            opened = (await http.post(f"{url}/episodes", json={})).raise_for_status().json()
            async with AsyncOpenAI(
                base_url=opened["base_url"], api_key="any", max_retries=0
            ) as client:
                yield client, http, opened["url"]
    finally:
        await server.close()


async def test_an_agents_turns_have_the_servers_ids_and_the_models_logprobs(
    engine: SGLangEngine, model: Path, reference: HuggingFace
) -> None:
    kept: list[Trajectory] = []
    async with served(engine, model, kept) as (client, http, url):
        first = await client.chat.completions.create(
            model="policy", messages=[HI], max_tokens=12
        )
        said: Any = {"role": "assistant", "content": first.choices[0].message.content}
        await client.chat.completions.create(
            model="policy", messages=[HI, said, HI], max_tokens=12
        )
        (await http.post(f"{url}/end")).raise_for_status()
    (trajectory,) = kept
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    for turn in trajectory.turns:
        sequence = trajectory.sequence(turn.index).tolist()
        made = concat_ids(turn.completion).tolist()
        assert [segment.policy_version for segment in turn.completion] == [1]
        wanted = reference.logprobs(sequence[: len(sequence) - len(made)], made)
        np.testing.assert_allclose(turn.completion[0].logprobs, wanted, atol=1e-4)


async def test_the_first_piece_of_a_stream_comes_while_the_server_still_generates(
    build: Callable[..., SGLangEngine],
    server: str,
    neighbour: Neighbour,
    reference: HuggingFace,
    model: Path,
) -> None:
    kept: list[Trajectory] = []
    running, pieces, logprobs = [], [], []
    seen = threading.Event()
    engine = build(neighbour(holds_back(server, seen)).url, sender=HttpSender)
    publish(engine, reference, 1)
    async with served(engine, model, kept, temperature=0.0) as (client, http, url):
        stream = await client.chat.completions.create(
            model="policy", messages=[HI], stream=True, logprobs=True
        )
        async for chunk in stream:
            logprobs += (
                chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
            )
            if chunk.choices[0].delta.content:
                running.append(engine.health().running)
                pieces.append(chunk.choices[0].delta.content)
                seen.set()  # the answer ends only now
        (await http.post(f"{url}/end")).raise_for_status()
    (turn,) = kept[0].turns
    assert "".join(pieces) == turn.message["content"]
    assert running[0] == 1
    assert len(pieces) > 1  # a busy machine sends the rest in few
    sampled = turn.completion[0].logprobs
    assert sampled is not None
    assert [entry.logprob for entry in logprobs] == pytest.approx(
        sampled[: len(logprobs)].tolist()
    )
    assert len(logprobs) >= sampled.size - 1  # the token that ended the turn has no text


async def test_a_grammar_forces_the_shape_of_an_answer_that_is_not_trained(
    engine: SGLangEngine, model: Path
) -> None:
    kept: list[Trajectory] = []
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    shape: Any = {"type": "json_schema", "json_schema": {"name": "shape", "schema": schema}}
    async with served(engine, model, kept) as (client, http, url):
        made = await client.chat.completions.create(
            model="policy", messages=[HI], response_format=shape, max_tokens=150
        )
        (await http.post(f"{url}/end")).raise_for_status()
    # of a model with random weights
    assert list(json.loads(made.choices[0].message.content or "")) == ["a"]
    assert "breaches" not in kept[0].turns[0].info
    assert kept[0].turns[0].sampling.json_schema  # type: ignore[union-attr]
