"""Tokens in, tokens out, on a real SGLang server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agentrl.engines.sglang import SGLangEngine
from agentrl.errors import EngineError
from agentrl.rollouts.token_consistency import assert_token_consistency
from agentrl.weight_sync import HttpSender
from tests.engines.sglang.models import (
    CONTEXT,
    NEAR,
    HuggingFace,
    in_flight,
    logprobs,
    made,
    publish,
    request,
)

pytestmark = pytest.mark.sglang

PROMPT = [5, 17, 200, 33, 8]
Build = Callable[..., SGLangEngine]


@pytest.fixture
def engine(build: Build, server: str, reference: HuggingFace) -> SGLangEngine:
    """On the shared server, with the model's own weights."""
    engine = build(server, sender=HttpSender)
    publish(engine, reference, 1)
    return engine


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_the_models_own(
    engine: SGLangEngine, reference: HuggingFace, temperature: float
) -> None:
    answers = await asyncio.gather(
        *(
            engine.generate(request(f"r{n}", [*PROMPT, n], temperature=temperature))
            for n in range(8)
        )
    )
    for n, answer in enumerate(answers):
        wanted = reference.logprobs([*PROMPT, n], made(answer), temperature)
        np.testing.assert_allclose(logprobs(answer), wanted, atol=NEAR)


async def test_greedy_tokens_are_the_models_own(
    engine: SGLangEngine, reference: HuggingFace
) -> None:
    answer = await engine.generate(
        request("greedy", PROMPT, temperature=0.0, max_new_tokens=12)
    )
    assert made(answer) == reference.greedy(PROMPT, len(made(answer)))


async def test_the_token_consistency_holds(engine: SGLangEngine) -> None:
    asked = request("golden", PROMPT)
    assert_token_consistency(asked, await engine.generate(asked), engine.info().vocab_size)


@pytest.mark.parametrize(
    ("temperature", "sampling"), [(0.7, {}), (1.0, {"top_k": 2}), (0.0, {})]
)
async def test_alternatives_are_the_models_likeliest_tokens(
    engine: SGLangEngine,
    reference: HuggingFace,
    temperature: float,
    sampling: dict[str, int],
) -> None:
    settings = {"temperature": temperature, **sampling}
    plain, *others = await asyncio.gather(
        engine.generate(request("plain", PROMPT, **settings)),
        *(
            engine.generate(request(f"r{n}", [*PROMPT, n], num_alternatives=5, **settings))
            for n in range(4)
        ),
    )
    assert [segment.side for segment in plain.segments] == [{}]
    for n, answer in enumerate(others):
        reference.assert_alternatives([*PROMPT, n], answer, 5, temperature or 1.0)


async def test_a_told_completion_has_alternatives_too(
    engine: SGLangEngine, reference: HuggingFace
) -> None:
    told: list[int] = []
    answer = await engine.generate(
        request(
            "told", PROMPT, num_alternatives=5, on_tokens=lambda ids, _: told.extend(ids)
        )
    )
    assert told == made(answer)[: len(told)]
    reference.assert_alternatives(PROMPT, answer, 5)


async def test_a_sampled_stop_token_is_kept(
    engine: SGLangEngine, reference: HuggingFace
) -> None:
    third = reference.greedy(PROMPT, 3)
    answer = await engine.generate(
        request("stop", PROMPT, temperature=0.0, stop_token_ids=(third[2],))
    )
    assert (answer.finish_reason, made(answer)) == (
        "stop",
        third[: third.index(third[2]) + 1],
    )


async def test_a_stop_string_across_two_tokens_leaves_both_whole(
    engine: SGLangEngine, model: Path, reference: HuggingFace
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = ([7, n] for n in range(3, 290))
    candidates = (
        (prompt, [tokenizer.decode([t]) for t in reference.greedy(prompt, 2)])
        for prompt in prompts
    )
    prompt, (first, second) = next(
        c for c in candidates if all(text.isascii() and text.isprintable() for text in c[1])
    )
    stop = first[-1] + second[0]
    answer = await engine.generate(request("string", prompt, temperature=0.0, stop=(stop,)))
    assert (answer.finish_reason, answer.stop_string) == ("stop", stop)
    assert tokenizer.decode(made(answer)) == first + second


async def test_the_second_turn_of_a_session_finds_its_cache(engine: SGLangEngine) -> None:
    prompt = [(n * 7) % 290 for n in range(60)]
    first = await engine.generate(request("turn0", prompt, session="s"))
    again = [*prompt, *made(first), 9, 10]
    second = await engine.generate(request("turn1", again, session="s"))
    assert second.cached_tokens >= len(prompt)


async def test_a_sequence_may_fill_the_whole_context(engine: SGLangEngine) -> None:
    answer = await engine.generate(request("full", [9] * (CONTEXT - 2), max_new_tokens=2))
    assert answer.usage.prompt_tokens == CONTEXT - 2


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([5, 300], r"must lie in \[0, 300\)"),
        ([9] * CONTEXT, "fit the engine's context_tokens=512"),
    ],
)
async def test_what_would_break_the_server_is_not_sent(
    engine: SGLangEngine, prompt: list[int], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        await engine.generate(request("bad", prompt))
    assert made(await engine.generate(request("good", PROMPT)))


async def test_an_aborted_completion_keeps_what_was_made(
    engine: SGLangEngine, reference: HuggingFace
) -> None:
    long = request("long", PROMPT, max_new_tokens=480, temperature=0.0, num_alternatives=2)
    [task] = await in_flight(engine, long)
    await asyncio.sleep(0.3)
    await engine.abort(["long", "unknown"])
    answer = await task
    if answer.finish_reason == "abort":  # a server that was fast enough may have finished
        assert len(made(answer)) < 480
    reference.assert_alternatives(PROMPT, answer, 2)
    np.testing.assert_allclose(
        logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=NEAR
    )


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_request_in_flight_survives_a_pause(
    engine: SGLangEngine, reference: HuggingFace, mode: str
) -> None:
    kept = request("kept", PROMPT, max_new_tokens=400, temperature=0.0, num_alternatives=3)
    [task] = await in_flight(engine, kept)
    await asyncio.to_thread(engine.pause, mode)
    await asyncio.to_thread(engine.resume)
    answer = await task
    reference.assert_alternatives(PROMPT, answer, 3)
    np.testing.assert_allclose(
        logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=NEAR
    )


async def test_memory_is_released_and_taken_back(engine: SGLangEngine) -> None:
    # nothing was released: the server must not hear of it
    await asyncio.to_thread(engine.wake, ["kv_cache"])
    await asyncio.to_thread(engine.pause, "retract")
    await asyncio.to_thread(engine.sleep, ["kv_cache", "graphs"])
    assert engine.health().state == "asleep"
    with pytest.raises(EngineError, match="the engine is asleep"):
        await asyncio.to_thread(engine.resume)
    await asyncio.to_thread(engine.wake, ["kv_cache", "graphs"])
    await asyncio.to_thread(engine.resume)
    assert made(await engine.generate(request("awake", PROMPT)))
