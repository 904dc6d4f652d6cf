"""Deterministic mode: a request's tokens and logprobs depend on its ids, seed and weights alone, to
the last bit.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.engines.tiny import (
    ROUNDING,
    make_model,
    random_ids,
    request,
    same_draws,
    sampled,
)


def bits(completion) -> tuple[bytes, bytes]:
    ids, logprobs = sampled(completion)
    return ids.tobytes(), logprobs.tobytes()


async def episode(engine, name: str, prompt, turns: int = 3, size: int = 9):
    """A few turns with made-up tool output between; everything that was sampled, as bits."""
    ids, seen = prompt, []
    for turn in range(turns):
        completion = await engine.generate(
            request(
                ids, name=f"{name}/{turn}", session=name, seed=turn, max_new_tokens=size
            )
        )
        seen.append(bits(completion))
        ids = np.concatenate([ids, sampled(completion)[0], random_ids(100 + turn, 7)])
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_thirty_sets_of_neighbours_change_no_bit(dtype, tiny, start) -> None:
    engine = start(tiny, dtype=dtype, deterministic=True, max_running=7)
    prompt = random_ids(0, 33)
    alone = await episode(engine, "alone", prompt)
    rng = np.random.default_rng(0)
    for trial in range(30):
        neighbours = [
            episode(
                engine,
                f"n{trial}-{n}",
                random_ids(int(rng.integers(1 << 30)), int(rng.integers(1, 60))),
                turns=2,
            )
            for n in range(int(rng.integers(1, 12)))
        ]
        # which row it gets depends on who came before
        place = int(rng.integers(len(neighbours) + 1))
        neighbours.insert(place, episode(engine, f"probe{trial}", prompt))
        results = await asyncio.gather(*neighbours)
        assert results[place] == alone, f"trial {trial}, {len(neighbours)} episodes"


@pytest.mark.parametrize(
    ("family", "cached"),
    [
        # all that was sampled but for the last token, which was not fed yet
        ("qwen3", 45 + 30 - 1),
        # in a fixed order: one whole chunk of the 45 ids that were prefilled
        ("gemma2", 32),
    ],
)
async def test_a_turn_on_kept_kv_equals_the_same_ids_in_a_new_session(
    family: str, cached: int, start
) -> None:
    engine = start(make_model(family), deterministic=True, max_running=4)
    prompt = random_ids(0, 45)
    first = await engine.generate(
        request(prompt, name="first", session="kept", max_new_tokens=30)
    )
    ids = np.concatenate([prompt, sampled(first)[0], random_ids(1, 5)])

    kept = await engine.generate(request(ids, name="kept", session="kept", seed=5))
    fresh = await engine.generate(request(ids, name="fresh", session="fresh", seed=5))

    assert kept.cached_tokens == cached
    assert fresh.cached_tokens == 0
    assert bits(kept) == bits(fresh)


async def test_a_run_resumed_in_mid_episode_equals_one_that_was_not_killed(
    tiny, start
) -> None:
    settings = {"deterministic": True, "max_running": 4}
    prompt = random_ids(0, 20)
    whole_run = await episode(start(tiny, **settings), "e", prompt)

    resumed = start(tiny, **settings)  # has never seen the first turn
    first = np.frombuffer(whole_run[0][0], dtype=np.int32)
    ids = np.concatenate([prompt, first, random_ids(100, 7)])
    second = await resumed.generate(
        request(ids, name="e/1", session="e", seed=1, max_new_tokens=9)
    )

    assert bits(second) == whole_run[1]


async def test_eviction_and_parking_change_no_bit(tiny, start) -> None:
    roomy = start(tiny, deterministic=True, max_running=4)
    # nothing can be parked
    tight = start(tiny, deterministic=True, max_running=4, kv_tokens=4 * 128)
    prompts = [random_ids(n, 20 + n) for n in range(9)]
    one = await asyncio.gather(
        *(episode(roomy, f"{n}", prompt) for n, prompt in enumerate(prompts))
    )
    two = await asyncio.gather(
        *(episode(tight, f"{n}", prompt) for n, prompt in enumerate(prompts))
    )
    assert one == two


async def test_siblings_that_share_a_prefill_equal_one_alone(tiny, start) -> None:
    prompt = random_ids(0, 50)
    asked = [request(prompt, name=f"{n}", seed=n) for n in range(4)]
    together = await asyncio.gather(
        *(start(tiny, deterministic=True).generate(one) for one in asked)
    )
    shared_engine = start(tiny, deterministic=True)
    shared = await asyncio.gather(*(shared_engine.generate(one) for one in asked))
    assert [bits(one) for one in together] == [bits(one) for one in shared]


@pytest.mark.parametrize("size", [31, 32, 33, 64, 90])
async def test_it_agrees_with_transformers_as_well(size, tiny, start) -> None:
    engine, prompt = start(tiny, deterministic=True), random_ids(0, size)
    ids, logprobs = sampled(await engine.generate(request(prompt)))
    assert (
        np.abs(logprobs - tiny.logprobs(np.concatenate([prompt, ids]), size)).max()
        <= ROUNDING
    )


async def test_without_the_mode_tokens_are_the_same_up_to_rounding(tiny, start) -> None:
    engine, prompt = start(tiny, max_running=6), random_ids(0, 33)
    alone = await engine.generate(request(prompt, name="alone", max_new_tokens=40))
    crowd = [
        request(random_ids(n, 5 + n), name=f"n{n}", max_new_tokens=50) for n in range(12)
    ]
    completions = await asyncio.gather(
        *(
            engine.generate(one)
            for one in [*crowd, request(prompt, name="beside", max_new_tokens=40)]
        )
    )
    assert same_draws(tiny, prompt, 0, alone, completions[-1])
    ids, logprobs = sampled(completions[-1])
    assert (
        np.abs(logprobs - tiny.logprobs(np.concatenate([prompt, ids]), 33)).max()
        <= ROUNDING
    )
