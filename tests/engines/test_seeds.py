"""Tokens are a function of a request's ids, seed and position: measured, over many neighbours."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.engines.tiny import ROUNDING, margin, random_ids, request, sampled

REQUESTS, TOKENS = 125, 180
ALLOWED = 3e-4
"""Share of tokens: a draw meets one of 60 ends of intervals, each moved by up to 1e-6 by rounding,
in 6e-5 of them.
"""
TEMPERATURES = (1.0, 0.7, 1.3)


def asked(number: int, **settings):
    ids = random_ids(number, 3 + number % 50)
    return request(
        ids,
        seed=number,
        temperature=TEMPERATURES[number % 3],
        max_new_tokens=TOKENS,
        **settings,
    )


@pytest.mark.slow
async def test_neighbours_change_tokens_only_within_rounding_and_at_most_thrice_in_10000(
    tiny, start
) -> None:
    few = start(tiny, context_tokens=256, max_running=2)
    many = start(tiny, context_tokens=256, max_running=40)
    order = np.random.default_rng(0).permutation(REQUESTS).tolist()
    crowd = [
        request(random_ids(1000 + n, 30), name=f"n{n}", seed=n, top_p=0.6, top_k=5)
        for n in range(60)
    ]
    neighbours = [asyncio.create_task(many.generate(one)) for one in crowd]
    alone = await asyncio.gather(
        *(few.generate(asked(n, name=f"{n}")) for n in range(REQUESTS))
    )
    among = await asyncio.gather(*(many.generate(asked(n, name=f"{n}")) for n in order))
    await asyncio.gather(*neighbours)

    compared = differing = 0
    for number, other in zip(order, among, strict=True):
        ids, again = sampled(alone[number])[0], sampled(other)[0]
        apart = np.flatnonzero(ids != again)
        compared += int(apart[0]) + 1 if apart.size else ids.size
        if apart.size:
            differing += 1
            history = np.concatenate([asked(number).token_ids, ids[: apart[0]]])
            assert margin(tiny, history, number, TEMPERATURES[number % 3]) <= ROUNDING
    assert compared >= 20_000
    assert differing <= ALLOWED * compared, f"{differing} of {compared}"


async def test_a_request_that_continues_another_draws_as_that_would_have(
    tiny, start
) -> None:
    engine, prompt = start(tiny), random_ids(0, 10)
    whole, _ = sampled(
        await engine.generate(request(prompt, name="whole", seed=7, max_new_tokens=30))
    )
    rest = np.concatenate([prompt, whole[:12]])
    assert sampled(
        await engine.generate(request(rest, name="rest", seed=7, max_new_tokens=18))
    )[0].tolist() == (whole[12:].tolist())


async def test_another_seed_gives_other_tokens(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 10)
    made = [
        await engine.generate(request(prompt, name=f"{n}", seed=n, max_new_tokens=30))
        for n in range(20)
    ]
    assert len({sampled(one)[0].tobytes() for one in made}) == 20
