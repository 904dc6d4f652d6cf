"""Alternatives: the likeliest tokens beside each sampled one, whatever interrupts the request."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.torch.sampling import SamplingRows, sample
from agentrl.types import Completion, Segment, SegmentKind, alternatives_side
from tests.engines.tiny import (
    ROUNDING,
    VOCAB,
    TinyModel,
    all_logprobs,
    make_model,
    publish,
    random_ids,
    request,
    sampled,
)
from tests.kit.held_engine import HeldEngine

HALF = 2**-11
"""How far a number in half precision lies from its own, as a share of it."""


def asking(ids: np.ndarray, count: int, **settings: Any) -> Any:
    return replace(request(ids, **settings), num_alternatives=count)


def assert_alternatives(
    completion: Completion,
    models: Mapping[int, TinyModel],
    prompt: np.ndarray,
    count: int,
    temperature: float = 1.0,
) -> None:
    """Each token has the ``count`` likeliest ones of the weights that sampled it, in order."""
    ids, _ = sampled(completion)
    whole = np.concatenate([prompt, ids])
    position = prompt.size
    for segment in completion.segments:
        exact = all_logprobs(
            models[segment.policy_version].exact, whole, temperature
        ).numpy()
        assert segment.alternatives is not None
        likely, logprobs = segment.alternatives
        assert likely.shape == logprobs.shape == (len(segment), count)
        for place in range(len(segment)):
            own = exact[position - 1]
            np.testing.assert_allclose(
                logprobs[place], np.sort(own)[::-1][:count], atol=ROUNDING, rtol=HALF
            )
            np.testing.assert_allclose(
                logprobs[place], own[likely[place]], atol=ROUNDING, rtol=HALF
            )
            beside = likely[place] == segment.token_ids[place]
            np.testing.assert_allclose(
                logprobs[place][beside], segment.logprobs[place], atol=ROUNDING, rtol=HALF
            )
            position += 1
    assert position == whole.size


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("temperature", "sampling"),
    [(1.0, {}), (0.7, {"top_k": 2}), (0.0, {})],
    ids=["plain", "truncated", "greedy"],
)
async def test_they_are_the_likeliest_under_the_convention_of_the_logprob(
    deterministic, temperature, sampling, tiny, start
) -> None:
    engine = start(tiny, deterministic=deterministic)
    prompts = [random_ids(n, 4 + n) for n in range(6)]
    completions = await asyncio.gather(
        *(
            engine.generate(
                asking(
                    prompt, n % 3, name=str(n), seed=n, temperature=temperature, **sampling
                )
            )
            for n, prompt in enumerate(prompts)
        )
    )
    for n, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        if n % 3:
            assert_alternatives(completion, {0: tiny}, prompt, n % 3, temperature or 1.0)
        else:
            assert [segment.side for segment in completion.segments] == [{}]


async def test_asking_for_them_changes_no_token(tiny, start) -> None:
    engine = start(tiny, deterministic=True)
    prompt = random_ids(3, 9)
    plain = sampled(await engine.generate(request(prompt, seed=4, max_new_tokens=30)))
    asked = sampled(await engine.generate(asking(prompt, 5, seed=4, max_new_tokens=30)))
    assert plain[0].tolist() == asked[0].tolist()
    assert plain[1].tolist() == asked[1].tolist()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_they_stay_with_their_tokens_through_updates_and_an_abort(
    mode, tiny, start
) -> None:
    models = [tiny, *(make_model(seed=seed) for seed in range(1, 4))]
    engine = start(tiny, context_tokens=256, max_running=3)
    prompts = [random_ids(n, 6 + n) for n in range(5)]
    held = HeldEngine(engine, running=3)
    tasks = [
        asyncio.create_task(
            engine.generate(
                asking(prompt, 2 + n % 4, name=str(n), seed=n, max_new_tokens=120)
            )
        )
        for n, prompt in enumerate(prompts)
    ]
    await asyncio.to_thread(held.during, publish, engine, 1, models[1].tensors, mode)
    for version, model in enumerate(models[2:], start=2):
        await asyncio.to_thread(publish, engine, version, model.tensors, mode)
    await engine.abort(["4"])
    completions = await asyncio.gather(*tasks)
    assert any(len(completion.segments) > 1 for completion in completions)
    for n, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        assert_alternatives(completion, dict(enumerate(models)), prompt, 2 + n % 4)


def test_those_too_unlikely_for_float32_come_last() -> None:
    logits = torch.tensor([[0.0, 500.0, -500.0]])
    drawn = sample(
        logits, torch.tensor([0.5], dtype=torch.float64), SamplingRows(num_alternatives=3)
    )
    host = drawn.on_host()
    assert host.alternative_ids[0, 0] == host.ids[0] == 1
    assert host.alternative_logprobs.tolist() == [[0.0, -np.inf, -np.inf]]


def test_logprobs_are_kept_in_half_precision() -> None:
    given = np.array([[-0.001, -11.3, -70000.0]], np.float32)
    side = alternatives_side(np.zeros((1, 3), np.int32), given)
    segment = Segment(SegmentKind.POLICY, np.array([1]), np.array([-1.0]), 0, side=side)
    assert sum(array.nbytes for array in segment.side.values()) == 3 * 6
    (read,) = pickle.loads(pickle.dumps(segment)).alternatives[1].tolist()
    assert read == pytest.approx([-0.001, -11.3, -np.inf], rel=HALF)


def test_ids_and_logprobs_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[n, k\], got \(2, 3\) and \(2, 2\)"):
        alternatives_side(np.zeros((2, 3), np.int32), np.zeros((2, 2), np.float32))
    side = alternatives_side(np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="has 2 rows for 1 tokens"):
        Segment(SegmentKind.POLICY, np.array([1]), np.array([-1.0]), 0, side=side)


def test_more_cannot_be_asked_than_there_are_tokens(tiny, start) -> None:
    every = asyncio.run(
        start(tiny).generate(asking(np.array([1, 2]), VOCAB, max_new_tokens=2))
    )
    assert_alternatives(every, {0: tiny}, np.array([1, 2], np.int32), VOCAB)
