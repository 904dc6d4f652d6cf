"""Tokens, logprobs and weights of a real vLLM server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.engines.base import PauseMode, WeightSender
from agentrl.engines.vllm import VLLMEngine
from agentrl.errors import EngineError
from agentrl.rollouts.token_consistency import assert_token_consistency
from agentrl.types import Completion, GenerateRequest
from agentrl.weight_sync import (
    BroadcastSender,
    DiskSender,
    HttpSender,
    SharedMemorySender,
    batches,
)
from tests.engines.sglang.models import (
    NEAR,
    HuggingFace,
    logprobs,
    made,
    request,
    versions,
)
from tests.engines.vllm.conftest import CONTEXT

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT = [5, 17, 200, 33, 8]
Build = Callable[..., VLLMEngine]


def publish(
    engine: VLLMEngine, reference: HuggingFace, version: int, mode: PauseMode = "retract"
) -> None:
    """Every weight of the reference, as version; the server computes with just these."""
    engine.pause(mode)
    session = engine.begin_update(version)
    for name, parameter in reference.module.named_parameters():
        session.put(name, parameter)
    session.commit()
    engine.checksum()
    engine.resume()
    [score] = engine.score([3, *PROMPT]).values()
    np.testing.assert_allclose(score, reference.logprobs([3], PROMPT), atol=NEAR)


@pytest.fixture
def engine(build: Build, server: str, reference: HuggingFace) -> VLLMEngine:
    """On the shared server, with the model's own weights."""
    engine = build(server, sender=DiskSender)
    publish(engine, reference, 1)
    return engine


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 5},
        {"temperature": 0.0},
    ],
)
async def test_logprobs_are_the_models_own_before_anything_is_cut(
    engine: VLLMEngine, reference: HuggingFace, sampling: dict[str, Any]
) -> None:
    asked = [request(f"r{n}", [*PROMPT, n], **sampling) for n in range(8)]
    answers = await asyncio.gather(*map(engine.generate, asked))
    temperature = sampling.get("temperature", 1.0) or 1.0
    for n, answer in enumerate(answers):
        wanted = reference.logprobs([*PROMPT, n], made(answer), temperature)
        np.testing.assert_allclose(logprobs(answer), wanted, atol=NEAR)
        assert_token_consistency(asked[n], answer, engine.info().vocab_size)


async def test_greedy_requests_beside_others_have_the_likeliest_tokens(
    engine: VLLMEngine, reference: HuggingFace
) -> None:
    # the sampler goes another way where all of a batch are greedy
    greedy, other = await asyncio.gather(
        engine.generate(request("greedy", PROMPT, temperature=0.0)),
        engine.generate(request("other", PROMPT, temperature=0.7, max_new_tokens=60)),
    )
    assert made(greedy) == reference.greedy(PROMPT, len(made(greedy)))
    np.testing.assert_allclose(
        logprobs(greedy), reference.logprobs(PROMPT, made(greedy)), atol=NEAR
    )
    np.testing.assert_allclose(
        logprobs(other), reference.logprobs(PROMPT, made(other), 0.7), atol=NEAR
    )


async def test_alternatives_are_the_models_likeliest_tokens(
    engine: VLLMEngine, reference: HuggingFace
) -> None:
    told: list[int] = []
    asked = request(
        "told",
        PROMPT,
        temperature=0.7,
        num_alternatives=5,
        on_tokens=lambda ids, _: told.extend(ids),
    )
    answer = await engine.generate(asked)
    assert told == made(answer)
    reference.assert_alternatives(PROMPT, answer, 5, 0.7)


async def test_stops_leave_the_tokens_whole(
    engine: VLLMEngine, reference: HuggingFace, model: Path
) -> None:
    from transformers import AutoTokenizer

    third = reference.greedy(PROMPT, 3)
    answer = await engine.generate(
        request("stop", PROMPT, temperature=0.0, stop_token_ids=(third[2],))
    )
    assert (answer.finish_reason, made(answer)) == (
        "stop",
        third[: third.index(third[2]) + 1],
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    answer = await engine.generate(
        request("string", PROMPT, stop=("a", "e", "i"), max_new_tokens=400)
    )
    assert answer.finish_reason == "stop"
    assert answer.stop_string in ("a", "e", "i")
    text = tokenizer.decode(made(answer))
    assert text.index(answer.stop_string) >= len(tokenizer.decode(made(answer)[:-1]))


async def test_a_turn_reads_the_tokens_before_it_from_the_cache(engine: VLLMEngine) -> None:
    prompt = [*PROMPT] * 60
    await engine.generate(request("one", prompt, session="s"))
    answer = await engine.generate(request("two", [*prompt, 9], session="s"))
    # whole blocks of 128
    assert answer.cached_tokens == 256


async def begun(engine: VLLMEngine, asked: GenerateRequest) -> asyncio.Task[Completion]:
    """A request whose first token the server has made."""
    loop, first = asyncio.get_running_loop(), asyncio.Event()

    # tokens are told in the engine's thread
    def tell(*_: object) -> None:
        loop.call_soon_threadsafe(first.set)

    task = asyncio.create_task(engine.generate(replace(asked, on_tokens=tell)))
    await first.wait()
    return task


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_completion_across_a_publish_names_both_versions(
    engine: VLLMEngine, model: Path, reference: HuggingFace, mode: PauseMode
) -> None:
    before = HuggingFace(model)
    requests = [request(f"r{number}", PROMPT, max_new_tokens=8000) for number in range(2)]
    tasks = [await begun(engine, one) for one in requests]
    await asyncio.to_thread(engine.pause, mode)
    reference.scale(1.05)
    await asyncio.to_thread(publish, engine, reference, 2, mode)
    for answer in await asyncio.gather(*tasks):
        assert versions(answer) == [1, 2]
        tokens = made(answer)
        split = len(answer.segments[0])
        new = reference.logprobs(PROMPT, tokens)[split:]
        np.testing.assert_allclose(
            logprobs(answer)[:split], before.logprobs(PROMPT, tokens)[:split], atol=NEAR
        )
        # in place, the new weights read the KV of the old ones
        found = np.abs(logprobs(answer)[split:] - new).max()
        assert (found <= NEAR, answer.stale_kv) == (
            (True, "never") if mode == "retract" else (False, "always")
        )
    await asyncio.to_thread(publish, engine, reference, 3)
    fresh = await engine.generate(request("fresh", PROMPT))
    assert (versions(fresh), fresh.stale_kv) == ([3], "never")
    np.testing.assert_allclose(
        logprobs(fresh), reference.logprobs(PROMPT, made(fresh)), atol=NEAR
    )


async def test_a_drained_completion_is_of_one_version(
    engine: VLLMEngine, reference: HuggingFace
) -> None:
    task = await begun(engine, request("drained", PROMPT, max_new_tokens=300))
    await asyncio.to_thread(publish, engine, reference, 2, "drain")
    assert versions(await task) == [1]


@pytest.mark.parametrize(
    ("sender", "batch_bytes"),
    [
        (SharedMemorySender, batches.BATCH_BYTES),
        (SharedMemorySender, 20_000),
        (HttpSender, 20_000),
        (BroadcastSender, 20_000),
    ],
)
async def test_weights_reach_the_server_in_each_way(
    build: Build,
    server: str,
    reference: HuggingFace,
    sender: Callable[[], WeightSender],
    batch_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", batch_bytes)
    engine = build(server, sender=sender)
    for version in (1, 2):
        reference.scale(1.03)
        await asyncio.to_thread(publish, engine, reference, version)
        answer = await engine.generate(request(f"v{version}", PROMPT))
        assert versions(answer) == [version]
        np.testing.assert_allclose(
            logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=NEAR
        )


async def test_an_update_that_its_owner_left_open_does_not_mix_with_the_next(
    build: Build, server: str, reference: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 20_000)

    def leave_open() -> None:
        engine = build(server, sender=SharedMemorySender)
        engine.pause("retract")
        session = engine.begin_update(1)
        for name, parameter in [*reference.module.named_parameters()][:5]:
            session.put(name, parameter * 3)
        engine.close()

    await asyncio.to_thread(leave_open)
    engine = build(server, sender=SharedMemorySender)
    await asyncio.to_thread(publish, engine, reference, 1)


async def test_an_engine_that_slept_serves_after_an_update(
    engine: VLLMEngine, reference: HuggingFace
) -> None:
    await asyncio.to_thread(engine.pause, "drain")
    await asyncio.to_thread(engine.sleep, ["graphs", "kv_cache", "weights"])
    await asyncio.to_thread(engine.wake, ["weights", "kv_cache", "graphs"])
    reference.scale(0.97)
    await asyncio.to_thread(publish, engine, reference, 2)
    answer = await engine.generate(request("awake", PROMPT))
    np.testing.assert_allclose(
        logprobs(answer), reference.logprobs(PROMPT, made(answer)), atol=NEAR
    )


def test_a_server_of_another_model_is_refused(
    build: Build, server: str, tmp_path: Path
) -> None:
    from tests.engines.sglang.conftest import make_model

    other = make_model(tmp_path / "other", seed=5, heads=2, context=CONTEXT)
    config = other / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 300', '"vocab_size": 301'))
    with pytest.raises(
        EngineError, match=r"serves another model: vocab_size is 300, .* has 301"
    ):
        build(server, model=str(other))


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"min_p": 0.1}, "min_p must be 0 for vLLM"),
        ({"max_new_tokens": CONTEXT + 1}, "must fit the engine"),
    ],
)
async def test_what_the_server_would_answer_wrongly_is_refused(
    engine: VLLMEngine, sampling: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        await engine.generate(request("bad", PROMPT, **sampling))
    assert not caught.value.retryable
