"""Streams as the OpenAI client sees them: pieces come while the turn is made, and say what the
whole answer says.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from agentrl.types import Completion, GenerateRequest
from tests.agent_server.served_policy import ADD, HI, Episode, ended, serving
from tests.engines.tiny import make_model
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import MODEL_VOCAB, call, ids, say, scripted
from tests.rollouts.speaking_engine import SpeakingEngine


async def stream_of(episode: Episode, **settings: Any) -> Any:
    return await episode.client.chat.completions.create(
        model="policy", messages=[HI], stream=True, **settings
    )  # type: ignore[list-item]


def said(chunks: list[Any]) -> list[str]:
    return [
        chunk.choices[0].delta.content
        for chunk in chunks
        if chunk.choices and chunk.choices[0].delta.content
    ]


async def test_a_stream_says_what_a_whole_answer_says() -> None:
    async with serving([say("<think>hm</think>so" + call("add", a=1))]) as served:
        episode = await served.open()
        stream = await episode.client.chat.completions.create(
            model="policy",
            messages=[HI],
            tools=[ADD],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        trajectory = await episode.end()
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "so"
    assert (
        next(d.reasoning_content for d in deltas if hasattr(d, "reasoning_content")) == "hm"
    )
    assert [c.function.name for d in deltas for c in d.tool_calls or []] == ["add"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][
        -1
    ] == "tool_calls"
    assert chunks[-1].usage.completion_tokens == trajectory.num_policy_tokens


class Halting(TorchEngine):
    """A real engine whose thread waits behind token ``HALT`` until the test has seen a piece of the
    answer.
    """

    HALT = 30

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.told = 0
        self.seen = threading.Event()

    async def generate(self, request: GenerateRequest) -> Completion:
        listener = request.on_tokens
        assert listener is not None

        def halting(ids: np.ndarray, logprobs: np.ndarray) -> None:
            listener(ids, logprobs)
            self.told += 1
            if self.told == self.HALT:
                self.seen.wait(DEADLINE_S)

        return await super().generate(replace(request, on_tokens=halting))


@pytest.fixture(scope="module")
def halting() -> Any:
    model = make_model(vocab_size=MODEL_VOCAB, max_position_embeddings=512)
    engine = Halting(
        EnginePlace("tiny", context_tokens=512, max_running=2),
        config=model.config,
        state_dict=model.tensors,
    )
    yield engine
    engine.close()


async def test_the_first_piece_comes_while_the_model_still_generates(
    halting: Halting,
) -> None:
    async with serving(halting) as served:
        episode = await served.open()
        stream = await stream_of(episode, max_tokens=120, logprobs=True)
        first = None
        async for chunk in stream:
            if first is None and chunk.choices[0].delta.content:
                first, told_then = chunk, halting.told
                running_then = halting.health().running
                halting.seen.set()
        trajectory = await episode.end()
    # so that the engine halted in the middle
    assert trajectory.num_policy_tokens > halting.HALT
    assert told_then <= halting.HALT
    assert running_then == 1


async def test_pieces_come_token_by_token() -> None:
    given: list[str] = []
    heard = asyncio.Event()

    async def pace(n: int) -> None:  # each token waits until the client has the one before
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        heard.clear()

    async with serving(SpeakingEngine([say("abcd")], pace)) as served:
        episode = await served.open()
        async for chunk in await stream_of(episode):
            if chunk.choices[0].delta.content:
                given.append(chunk.choices[0].delta.content)
                heard.set()
        await episode.end()
    assert given == ["a", "b", "c", "d"]


async def test_a_piece_holds_whole_characters() -> None:
    text = "na\u00efve \U0001f600\u2028 e\u0301 \u4e16"
    async with serving(
        SpeakingEngine([say(text)], lambda n: asyncio.sleep(0.001))
    ) as served:
        episode = await served.open()
        pieces = said([chunk async for chunk in await stream_of(episode)])
        await episode.end()
    assert "".join(pieces) == text
    assert len(pieces) > 5


async def test_a_call_comes_when_it_is_closed_and_the_next_is_still_written() -> None:
    seen = asyncio.Event()
    first = ids(call("add", a=1))

    async def pace(n: int) -> None:
        if n == len(first) + 5:
            await asyncio.wait_for(seen.wait(), DEADLINE_S)

    names = []
    async with serving(
        SpeakingEngine([say(call("add", a=1) + call("add", a=2))], pace)
    ) as served:
        episode = await served.open()
        async for chunk in await stream_of(episode, tools=[ADD]):
            for made in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                names.append((made.index, made.id, made.function.arguments))
                seen.set()
            assert not (chunk.choices and chunk.choices[0].delta.content)
        await episode.end()
    assert names == [(0, "call_0_0", '{"a": 1}'), (1, "call_0_1", '{"a": 2}')]


async def test_logprobs_name_each_sampled_token_streamed_or_not() -> None:
    script = [say("<think>h</think>yo")] * 2
    async with serving(SpeakingEngine(script, lambda n: asyncio.sleep(0.001))) as served:
        episode = await served.open()
        chunks = [chunk async for chunk in await stream_of(episode, logprobs=True)]
        whole = await episode.client.chat.completions.create(
            model="policy", messages=[HI], logprobs=True
        )
        await episode.end()
    listed = [
        chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs
    ]
    streamed = [
        (entry.token, entry.logprob, entry.bytes) for content in listed for entry in content
    ]
    assert streamed == [(letter, -1.0, [ord(letter)]) for letter in "<think>h</think>yo"]
    assert streamed == [
        (e.token, e.logprob, e.bytes) for e in whole.choices[0].logprobs.content
    ]
    assert len(listed) > 1


async def test_an_engine_that_cannot_stream_gives_one_piece() -> None:
    async with serving(scripted([say("abcd")])) as served:
        episode = await served.open()
        pieces = said([chunk async for chunk in await stream_of(episode)])
        await episode.end()
    assert pieces == ["abcd"]


async def test_a_turn_that_fails_once_it_has_begun_ends_its_stream_with_an_error() -> None:
    async with serving(SpeakingEngine([say("abcdef")], mishear=1)) as served:
        episode = await served.open()
        with pytest.raises(openai.APIError, match=r"token consistency violated.*streamed"):
            async for _ in await stream_of(episode):
                pass
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert str(served.kept[0].status) == "failed(engine)"


async def test_what_is_refused_before_a_token_has_its_status() -> None:
    async with serving([say("ok")], max_prompt_tokens=3) as served:
        episode = await served.open()
        with pytest.raises(openai.BadRequestError):
            await stream_of(episode)


async def test_a_client_that_leaves_its_stream_aborts_the_turn() -> None:
    left = asyncio.Event()

    async def pace(n: int) -> None:
        if n == 3 and not left.is_set():
            await asyncio.Event().wait()

    engine = SpeakingEngine(lambda request: say("abcdef"), pace)
    async with serving(engine) as served:
        episode = await served.open()
        stream = await stream_of(episode)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.response.aclose()
        left.set()
        await episode.say(HI)
        trajectory = await episode.end()
    assert len(trajectory.turns) == 1


async def test_the_agent_that_reads_a_stream_goes_on_with_its_sequence() -> None:
    engine = SpeakingEngine([say("<think>hm</think>so" + call("add", a=1)), say("x")])
    async with serving(engine) as served:
        episode = await served.open()
        async with episode.client.chat.completions.stream(
            model="policy", messages=[HI], tools=[ADD]
        ) as stream:  # type: ignore[list-item]
            async for _ in stream:
                pass
            message = (await stream.get_final_completion()).choices[0].message
        calls = [
            made.model_dump(include={"id", "type", "function"})
            for made in message.tool_calls
        ]
        for made in calls:
            made["function"] = {
                "name": made["function"]["name"],
                "arguments": made["function"]["arguments"],
            }
        history = [
            HI,
            {"role": "assistant", "content": message.content, "tool_calls": calls},
        ]
        await episode.say(
            *history,
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "1"},
            tools=[ADD],
        )
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
