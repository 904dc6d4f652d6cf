"""TorchEngine on a CUDA device."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from tests.engines.tiny import make_model, publish, random_ids, request, sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "gemma2", "gpt_neox"])
async def test_logprobs_of_three_turns_agree_with_transformers_on_the_cpu(
    family, start
) -> None:
    model = make_model(family)
    engine = start(model, device="cuda:0")

    async def episode(number: int) -> None:
        ids = random_ids(number, 5 + 3 * number)
        for turn in range(3):
            completion = await engine.generate(
                request(ids, name=f"{number}/{turn}", session=f"{number}", seed=number)
            )
            new, logprobs = sampled(completion)
            whole = np.concatenate([ids, new])
            assert np.abs(logprobs - model.logprobs(whole, ids.size)).max() <= 1e-4
            assert completion.cached_tokens == (0 if turn == 0 else ids.size - 4)
            ids = np.concatenate([whole, random_ids(turn, 3)])

    await asyncio.gather(*(episode(number) for number in range(12)))


async def test_bf16_agrees_within_its_own_rounding_there_too(start) -> None:
    model = make_model(initializer_range=0.1)
    engine, prompt = start(model, device="cuda:0", dtype="bfloat16"), random_ids(3, 20)
    ids, logprobs = sampled(await engine.generate(request(prompt, max_new_tokens=20)))
    assert (
        np.abs(logprobs - model.logprobs(np.concatenate([prompt, ids]), prompt.size)).max()
        < 0.05
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_deterministic_mode_is_exact_there_too(dtype, start) -> None:
    engine = start(make_model(), device="cuda:0", dtype=dtype, deterministic=True)
    prompt = random_ids(0, 33)
    alone = sampled(await engine.generate(request(prompt, name="alone", max_new_tokens=40)))
    crowd = [
        request(random_ids(n, 5 + n), name=f"n{n}", seed=n, max_new_tokens=20)
        for n in range(10)
    ]
    crowd.append(request(prompt, name="beside", max_new_tokens=40))
    beside = sampled((await asyncio.gather(*(engine.generate(one) for one in crowd)))[-1])
    assert [part.tobytes() for part in beside] == [part.tobytes() for part in alone]


async def test_weights_from_the_cpu_are_served_there(start) -> None:
    engine = start(make_model(), device="cuda:0")
    other = make_model(seed=1)
    prompt = random_ids(0, 12)
    await asyncio.to_thread(publish, engine, 1, other.tensors)
    ids, logprobs = sampled(await engine.generate(request(prompt)))
    assert (
        np.abs(logprobs - other.logprobs(np.concatenate([prompt, ids]), prompt.size)).max()
        <= 1e-4
    )
    assert engine.checksum() == start(other).checksum()
