"""Agents that do whatever they like with their histories: token consistency holds, and each token
is trained once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.agent_server import ServedEpisode
from agentrl.agent_server.api.api_error import PolicyApiError
from agentrl.agent_server.api.chat_completions import CompletionAnswer
from agentrl.agent_server.api.dialect import Asked
from agentrl.agent_server.api.responses import ResponseAnswer
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import to_items, to_wire
from agentrl.rollouts import EpisodeKey
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import GenerateRequest, Trajectory, concat_ids
from tests.rollouts.bytewise import (
    END,
    KEY,
    MODEL_VOCAB,
    TASK,
    BytewiseRenderer,
    call,
    context_of,
    ids,
    rollout_spec,
    scripted,
)

WORDS = [
    "ok",
    "",
    " ",
    "<think>hm</think>so",
    "é\u2028",
    "<tool_call>{bad</tool_call>",
    call("add", a=1) * 2,
    call("add"),
]


def completion(request: GenerateRequest) -> list[int]:
    """Words, calls, thoughts, broken calls, or ids that no text has; some of them cut."""
    rng = random.Random(request.seed)
    if rng.random() < 0.2:
        return [rng.randrange(MODEL_VOCAB) for _ in range(rng.randrange(1, 9))]
    return [
        *ids("".join(rng.choices(WORDS, k=rng.randrange(1, 4)))),
        *([END] if rng.random() < 0.8 else []),
    ]


async def wander(seed: int, *, rewrites: bool) -> tuple[Trajectory, Any]:
    """One episode of an agent that extends, edits, branches, forgets, and asks several things at
    once.
    """
    rng = random.Random(seed)
    engine = scripted(completion)
    limits = {
        "max_turns": 12,
        "max_prompt_tokens": 5000,
        "max_response_tokens": 5000,
        "context_tokens": 9000,
    }
    parts = context_of(
        rollout_spec(renderer=BytewiseRenderer(rewrites=rewrites), **limits), engine
    )
    builder = TrajectoryBuilder(KEY, TASK)
    turns = TurnGenerator(parts, builder, parts.spec.episode.sampling)
    episode = ServedEpisode(turns)
    histories: list[list[dict[str, Any]]] = [[]]

    async def ask() -> None:
        history = [dict(message) for message in rng.choice(histories)]
        if history and rng.random() < 0.2:
            history[rng.randrange(len(history))]["content"] = rng.choice(
                ["edited", "<|im_start|>", ""]
            )
        if rng.random() < 0.3:
            for message in history:
                message.pop("reasoning_content", None)
        for made in history[-1].get("tool_calls", []) if history else []:
            history.append(
                {"role": "tool", "tool_call_id": made["id"], "content": rng.choice(WORDS)}
            )
        history.append(
            {"role": rng.choice(["user", "user", "system"]), "content": rng.choice(WORDS)}
        )
        tools = (
            [{"type": "function", "function": {"name": "add"}}]
            if rng.random() < 0.1
            else []
        )
        try:
            made = await episode.complete(
                StreamWriter(
                    CompletionAnswer(Asked({"messages": history, "tools": tools})).chat
                )
            )
        except PolicyApiError:
            return
        histories.append([*history, to_wire(made.action.message, reasoning=True)])

    for _ in range(4):
        await asyncio.gather(*(ask() for _ in range(rng.randrange(1, 4))))
    await episode.close()
    return builder.finish(await episode.until_end()), engine


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), rewrites=st.booleans())
def test_whatever_an_agent_does_each_sequence_is_what_the_engine_was_given_and_made(
    seed: int, rewrites: bool
) -> None:
    trajectory, engine = asyncio.run(wander(seed, rewrites=rewrites))
    assert trajectory.turns
    given_ids = Counter(tuple(request.token_ids.tolist()) for request in engine.requests)
    recorded: Counter[tuple[int, ...]] = Counter()
    for turn in trajectory.turns:
        made = concat_ids(turn.completion).size
        sequence = trajectory.sequence(turn.index).tolist()
        recorded[tuple(sequence[: len(sequence) - made])] += 1
    assert recorded == given_ids
    owned = [turn for sample in trajectory.samples() for turn in sample.owned]
    assert sorted(owned) == list(range(len(trajectory.turns)))
    assert len({request.request_id for request in engine.requests}) == len(engine.requests)


async def repeat(seed: int) -> Trajectory:
    """One episode of an agent that sends back what it was told, without thoughts, as JSON carries
    it.
    """
    rng = random.Random(seed)
    limits = {
        "max_turns": 12,
        "max_prompt_tokens": 5000,
        "max_response_tokens": 5000,
        "context_tokens": 9000,
    }
    parts = context_of(rollout_spec(**limits), scripted(completion))
    builder = TrajectoryBuilder(EpisodeKey(seed, 0), TASK)
    episode = ServedEpisode(TurnGenerator(parts, builder, parts.spec.episode.sampling))
    history: list[dict[str, Any]] = []
    for _ in range(5):
        history.append({"role": "user", "content": rng.choice(WORDS)})
        made = await episode.complete(
            StreamWriter(
                CompletionAnswer(Asked(json.loads(json.dumps({"messages": history})))).chat
            )
        )
        history.append(to_wire(made.action.message))
        for number, asked in enumerate(history[-1].get("tool_calls", [])):
            history.append(
                {"role": "tool", "tool_call_id": asked["id"], "content": str(number)}
            )
    await episode.close()
    return builder.finish(await episode.until_end())


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_an_agent_that_repeats_what_it_was_told_has_one_sequence(seed: int) -> None:
    trajectory = asyncio.run(repeat(seed))
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 1, 2, 3]
    assert len(trajectory.samples()) == 1


async def repeat_items(seed: int) -> Trajectory:
    """One episode of an agent that sends back the items of its responses, or names the last
    response by its id.
    """
    rng = random.Random(seed)
    limits = {
        "max_turns": 12,
        "max_prompt_tokens": 5000,
        "max_response_tokens": 5000,
        "context_tokens": 9000,
    }
    parts = context_of(rollout_spec(**limits), scripted(completion))
    builder = TrajectoryBuilder(EpisodeKey(seed, 0), TASK)
    episode = ServedEpisode(TurnGenerator(parts, builder, parts.spec.episode.sampling))
    history: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    before = None
    for number in range(5):
        new = [*new, {"role": "user", "content": rng.choice(WORDS)}]
        body = (
            {"input": new, "previous_response_id": before}
            if before and rng.random() < 0.5
            else {"input": [*history, *new]}
        )
        body = json.loads(json.dumps({**body, "instructions": "be brief"}))
        response = ResponseAnswer(Asked(body, threads=episode.threads))
        made = await episode.complete(StreamWriter(response.chat))
        response.record(made)
        before = response.id
        items = to_items(made.action.message, str(number))
        history += [
            *new,
            *(item for item in items if item["type"] != "reasoning" or rng.random() < 0.5),
        ]
        calls = [item["call_id"] for item in items if item["type"] == "function_call"]
        new = [
            {"type": "function_call_output", "call_id": call_id, "output": call_id}
            for call_id in calls
        ]
    await episode.close()
    return builder.finish(await episode.until_end())


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_an_agent_that_repeats_the_items_that_it_was_told_has_one_sequence(
    seed: int,
) -> None:
    trajectory = asyncio.run(repeat_items(seed))
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 1, 2, 3]
    assert len(trajectory.samples()) == 1
