"""Weight updates: versions, corrupt engines, and no forward that mixes two."""

from __future__ import annotations

import asyncio
import weakref

import numpy as np
import pytest
import torch

from agentrl.engines.checksum import tensor_checksum
from agentrl.errors import EngineError
from tests.engines.tiny import ROUNDING, make_model, publish, random_ids, request, sampled
from tests.kit.held_engine import HeldEngine


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_the_engines_checksum_is_over_the_hugging_face_tensors(architecture, start) -> None:
    model = (
        make_model(architecture, attention_bias=True)
        if architecture == "llama"
        else make_model(architecture)
    )
    expected = {
        name: tensor_checksum(name, tensor)
        for name, tensor in model.tensors.items()
        if name != "lm_head.weight"  # tied: the embedding under another name
    }
    assert start(model).checksum() == expected


def test_the_checksum_is_of_the_served_dtype(tiny, start) -> None:
    name = "model.norm.weight"
    own = tensor_checksum(name, tiny.tensors[name].bfloat16())
    assert start(tiny, dtype="bfloat16").checksum()[name] == own


async def test_after_a_commit_the_new_weights_answer_under_their_version(
    tiny, start
) -> None:
    engine, other, prompt = start(tiny), make_model(seed=1), random_ids(0, 12)
    await engine.generate(request(prompt, name="before", session="s"))

    await asyncio.to_thread(publish, engine, 3, other.tensors)
    completion = await engine.generate(request(prompt, name="after", session="s"))

    ids, logprobs = sampled(completion)
    assert [segment.policy_version for segment in completion.segments] == [3]
    assert completion.cached_tokens == 0  # KV of version 0 was dropped
    assert (
        np.abs(logprobs - other.logprobs(np.concatenate([prompt, ids]), prompt.size)).max()
        <= ROUNDING
    )
    assert engine.info().policy_version == engine.health().policy_version == 3


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_each_token_of_an_interrupted_request_is_of_the_one_version_recorded(
    mode, tiny, start
) -> None:
    models = [tiny, *(make_model(seed=seed) for seed in range(1, 5))]
    engine, prompt = start(tiny, context_tokens=256, max_running=2), random_ids(0, 12)
    asked = [request(prompt, name=str(n), seed=n, max_new_tokens=240) for n in range(10)]
    held = HeldEngine(engine)
    tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
    await asyncio.to_thread(held.during, publish, engine, 1, models[1].tensors, mode)
    for version, model in enumerate(models[2:], start=2):
        await asyncio.to_thread(publish, engine, version, model.tensors, mode)
    completions = await asyncio.gather(*tasks)

    for completion in completions:
        ids, logprobs = sampled(completion)
        whole, position = np.concatenate([prompt, ids]), 0
        for segment in completion.segments:
            expected = models[segment.policy_version].logprobs(whole, prompt.size)
            own = slice(position, position + len(segment))
            # another version's are whole nats away
            assert np.abs(logprobs[own] - expected[own]).max() <= ROUNDING
            position += len(segment)
        versions = [segment.policy_version for segment in completion.segments]
        assert versions == sorted(set(versions))
        assert completion.usage.completion_tokens == position == 240
        assert completion.usage.kv_tokens == prompt.size + 239
    assert any(len(completion.segments) > 1 for completion in completions)


async def test_a_drain_lets_what_runs_end_and_holds_back_the_rest(tiny, start) -> None:
    engine = start(tiny, max_running=1)
    held = HeldEngine(engine)
    first = asyncio.create_task(
        engine.generate(request(random_ids(0, 5), name="first", max_new_tokens=60))
    )
    second = asyncio.create_task(engine.generate(request(random_ids(1, 5), name="second")))

    await asyncio.to_thread(held.during, engine.pause, "drain")

    assert engine.health().state == "paused"
    assert (await first).finish_reason == "length"
    assert not second.done()
    engine.resume()
    assert (await second).finish_reason == "length"


@pytest.mark.parametrize("fault", ["missing", "shape", "unknown", "abort"])
async def test_a_failed_update_leaves_an_engine_that_answers_nothing(
    fault, tiny, start
) -> None:
    engine = start(tiny)
    engine.pause("retract")
    waiting = asyncio.create_task(
        engine.generate(request(random_ids(0, 5), name="waiting"))
    )
    await asyncio.sleep(0)
    session = engine.begin_update(1)
    session.put("model.norm.weight", torch.ones(32))
    if fault == "abort":
        session.abort()
    else:
        name = {
            "missing": "model.norm.weight",
            "shape": "model.embed_tokens.weight",
            "unknown": "model.nom.weight",
        }
        message = {
            "missing": "were not put",
            "shape": r"\(61, 32\), got \(32,\)",
            "unknown": "model.nom.weight",
        }

        def finish() -> None:
            session.put(name[fault], torch.ones(32))
            session.commit()

        with pytest.raises(EngineError, match=message[fault]):
            finish()

    assert engine.health().state == "corrupt"
    with pytest.raises(EngineError, match="corrupt"):
        await waiting
    with pytest.raises(EngineError, match="corrupt"):
        await engine.generate(request(random_ids(0, 5), name="later"))
    for move in (engine.resume, lambda: engine.begin_update(2)):
        with pytest.raises(EngineError, match="corrupt"):
            move()


async def test_an_update_given_up_before_anything_was_put_leaves_the_old_version(
    tiny, start
) -> None:
    engine = start(tiny)
    engine.pause("retract")
    engine.begin_update(1).abort()
    engine.resume()
    completion = await engine.generate(request(random_ids(0, 5)))
    assert completion.segments[0].policy_version == 0


def test_an_update_requires_a_paused_engine(tiny, start) -> None:
    with pytest.raises(EngineError, match="it is serving"):
        start(tiny).begin_update(1)


def test_two_updates_at_once_are_refused(tiny, start) -> None:
    engine = start(tiny)
    engine.pause("retract")
    engine.begin_update(1)
    with pytest.raises(EngineError, match="another update is open"):
        engine.begin_update(2)


def test_an_open_update_forbids_to_resume(tiny, start) -> None:
    engine = start(tiny)
    engine.pause("retract")
    engine.begin_update(1)
    with pytest.raises(EngineError, match="updating"):
        engine.resume()


async def test_sleep_frees_the_kv_and_wake_recomputes_it(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 20)
    before = sampled(await engine.generate(request(prompt, name="before", session="s")))
    held = weakref.ref(engine._core._rows.kv._both)
    engine.sleep(["kv_cache"])
    assert held() is None
    assert (engine.health().state, engine.health().kv_tokens) == ("asleep", 0)
    waiting = asyncio.create_task(
        engine.generate(request(prompt, name="after", session="s"))
    )
    with pytest.raises(EngineError, match="wake"):
        engine.resume()

    engine.wake(["kv_cache"])
    engine.resume()

    assert sampled(await waiting)[0].tolist() == before[0].tolist()


async def test_sleep_is_refused_while_requests_are_interrupted_in_place(
    tiny, start
) -> None:
    engine = start(tiny)
    held = HeldEngine(engine)
    task = asyncio.create_task(
        engine.generate(request(random_ids(0, 5), max_new_tokens=100))
    )
    await asyncio.to_thread(held.during, engine.pause, "in_place")
    with pytest.raises(EngineError, match="retract"):
        engine.sleep(["kv_cache"])
    engine.resume()
    await task


async def test_weights_that_overflow_are_an_error_with_the_version_named(
    tiny, start
) -> None:
    engine, other = start(tiny), make_model(seed=1)
    broken = {
        name: torch.full_like(tensor, float("nan")) for name, tensor in tiny.tensors.items()
    }
    await asyncio.to_thread(publish, engine, 7, broken)
    with pytest.raises(
        EngineError, match="NaN or infinite under policy_version=7"
    ) as caught:
        await engine.generate(request(random_ids(0, 5), name="broken"))
    assert not caught.value.retryable

    await asyncio.to_thread(publish, engine, 8, other.tensors)

    prompt = random_ids(0, 9)
    ids, logprobs = sampled(await engine.generate(request(prompt, name="mended")))
    assert (
        np.abs(logprobs - other.logprobs(np.concatenate([prompt, ids]), prompt.size)).max()
        <= ROUNDING
    )
