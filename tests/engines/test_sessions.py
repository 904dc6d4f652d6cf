"""What is kept of a session between turns, what is shared by siblings, and what is evicted."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.engines.tiny import ROUNDING, random_ids, request, same_draws, sampled


async def turn(engine, ids, name, session, **settings):
    completion = await engine.generate(request(ids, name=name, session=session, **settings))
    return completion, np.concatenate([ids, sampled(completion)[0]])


async def test_siblings_share_the_prefill_of_their_prompt(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 40)
    engine.pause("retract")  # all four are in the queue when the engine goes on
    asked = [request(prompt, name=f"{n}", seed=n, max_new_tokens=30) for n in range(4)]
    tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
    await asyncio.sleep(0)
    engine.resume()
    completions = await asyncio.gather(*tasks)

    assert sorted(completion.cached_tokens for completion in completions) == [0, 40, 40, 40]
    for completion in completions:
        ids, logprobs = sampled(completion)
        assert (
            np.abs(logprobs - tiny.logprobs(np.concatenate([prompt, ids]), 40)).max()
            <= ROUNDING
        )
    # each its own seed
    assert len({sampled(completion)[0].tobytes() for completion in completions}) == 4


async def test_a_sibling_that_comes_later_copies_the_prompts_kv(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 40)
    await turn(engine, prompt, "first", "a")
    completion, whole = await turn(engine, prompt, "second", "b", seed=1)
    assert completion.cached_tokens == 39  # the last id is fed again for its logits
    assert np.abs(sampled(completion)[1] - tiny.logprobs(whole, 40)).max() <= ROUNDING


async def test_history_that_differs_is_prefilled_from_where_it_differs(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 40)
    _, whole = await turn(engine, prompt, "first", "s")
    edited = whole.copy()
    edited[25] = (edited[25] + 1) % 61
    completion, whole = await turn(engine, edited, "second", "s")
    assert completion.cached_tokens == 25
    assert (
        np.abs(sampled(completion)[1] - tiny.logprobs(whole, edited.size)).max() <= ROUNDING
    )


async def test_a_shorter_history_forgets_the_rest(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 40)
    await turn(engine, prompt, "first", "s")
    completion, whole = await turn(engine, prompt[:10], "second", "s")
    assert completion.cached_tokens == 9
    assert np.abs(sampled(completion)[1] - tiny.logprobs(whole, 10)).max() <= ROUNDING
    assert completion.usage.kv_tokens == whole.size - 1


async def test_a_session_without_a_row_is_parked_and_comes_back_with_its_kv(
    tiny, start
) -> None:
    engine = start(tiny, max_running=1, kv_tokens=4 * 128)
    sequences = [
        (await turn(engine, random_ids(n, 30), f"a{n}", f"s{n}"))[1] for n in range(3)
    ]
    for n, ids in enumerate(sequences):
        completion, whole = await turn(engine, ids, f"b{n}", f"s{n}")
        assert completion.cached_tokens == ids.size - 1
        assert (
            np.abs(sampled(completion)[1] - tiny.logprobs(whole, ids.size)).max()
            <= ROUNDING
        )


async def test_beyond_kv_tokens_the_least_recently_used_session_is_evicted_and_prefilled_again(
    tiny, start
) -> None:
    # the only row takes 128 positions, 40 are left to park: one session of 37, not two
    engine = start(tiny, max_running=1, kv_tokens=128 + 40)
    sequences = [
        (await turn(engine, random_ids(n, 30), f"a{n}", f"s{n}"))[1] for n in range(3)
    ]
    assert engine.health().kv_tokens == 2 * 37

    evicted, whole = await turn(engine, sequences[0], "b0", "s0")

    assert evicted.cached_tokens == 0
    assert (
        np.abs(sampled(evicted)[1] - tiny.logprobs(whole, sequences[0].size)).max()
        <= ROUNDING
    )


async def test_a_parked_session_that_comes_back_trades_places_with_the_one_in_its_row(
    tiny, start
) -> None:
    # 40 positions beside the row hold one session of 37: the other's place is free only once this
    # one has left it
    engine = start(tiny, max_running=1, kv_tokens=128 + 40)
    sequences = [
        (await turn(engine, random_ids(n, 30), f"a{n}", f"s{n}"))[1] for n in range(2)
    ]
    for n in (0, 1, 0):
        completion, whole = await turn(
            engine, sequences[n], f"b{n}", f"s{n}", max_new_tokens=1
        )
        assert completion.cached_tokens == sequences[n].size - 1
        assert (
            np.abs(sampled(completion)[1] - tiny.logprobs(whole, sequences[n].size)).max()
            <= ROUNDING
        )
    assert engine.health().kv_tokens == 2 * 38


@pytest.mark.parametrize("room", [0, 20, 60, 100, 200])
async def test_whatever_is_evicted_each_turn_is_answered_within_kv_tokens(
    room, tiny, start
) -> None:
    rows = 3
    engine, held = start(tiny, max_running=8, kv_tokens=rows * 128 + room), []

    async def episode(number: int) -> None:
        ids = random_ids(number, 5 + number % 4 * 9)
        for step in range(4):
            completion, whole = await turn(
                engine, ids, f"{number}/{step}", f"s{number}", max_new_tokens=3 + number % 5
            )
            assert (
                np.abs(sampled(completion)[1] - tiny.logprobs(whole, ids.size)).max()
                <= ROUNDING
            )
            held.append(engine.health().kv_tokens)
            ids = np.concatenate([whole, random_ids(step, 3)])
        await engine.release(f"s{number}")

    await asyncio.gather(*(episode(number) for number in range(20)))
    assert max(held) <= rows * 128 + room


async def test_released_sessions_hold_nothing(tiny, start) -> None:
    engine = start(tiny, max_running=2)
    for n in range(5):
        await turn(engine, random_ids(n, 30), f"{n}", f"s{n}")
    for n in range(5):
        await engine.release(f"s{n}")
    # the releases ran before it
    await turn(engine, random_ids(9, 3), "last", "last", max_new_tokens=1)
    assert engine.health().kv_tokens == 3


async def test_more_requests_than_rows_wait_in_a_queue(tiny, start) -> None:
    engine = start(tiny, max_running=3)
    asked = [
        request(random_ids(n, 3 + n), name=f"{n}", seed=n, max_new_tokens=1 + n % 7)
        for n in range(50)
    ]
    completions = await asyncio.gather(*(engine.generate(one) for one in asked))
    for one, completion in zip(asked, completions, strict=True):
        ids, logprobs = sampled(completion)
        assert ids.size == one.sampling.max_new_tokens
        whole = np.concatenate([one.token_ids, ids])
        assert np.abs(logprobs - tiny.logprobs(whole, one.token_ids.size)).max() <= ROUNDING


async def test_rows_moved_together_in_the_tail_go_on_as_they_were(tiny, start) -> None:
    engine = start(tiny, max_running=24)
    # all but the last three rows end at once, so that those are moved to the front
    asked = [
        request(random_ids(n, 12), name=f"{n}", seed=n, max_new_tokens=4 if n < 21 else 90)
        for n in range(24)
    ]
    completions = await asyncio.gather(*(engine.generate(one) for one in asked))
    again = [
        await engine.generate(
            request(random_ids(n, 12), name=f"again{n}", seed=n, max_new_tokens=90)
        )
        for n in range(21, 24)
    ]
    for n, completion, alone in zip(range(21, 24), completions[21:], again, strict=True):
        assert same_draws(tiny, random_ids(n, 12), n, completion, alone)
        ids, logprobs = sampled(completion)
        assert (
            np.abs(
                logprobs - tiny.logprobs(np.concatenate([random_ids(n, 12), ids]), 12)
            ).max()
            <= ROUNDING
        )


async def test_the_turns_of_one_session_run_one_after_the_other(tiny, start) -> None:
    engine, prompt = start(tiny), random_ids(0, 10)
    both = await asyncio.gather(
        *(turn(engine, prompt, f"{n}", "same", seed=n) for n in range(2))
    )
    for _, whole in both:
        assert whole.size == 18
    assert [completion.cached_tokens for completion, _ in both] == [0, 9]


@pytest.mark.parametrize("with_stop_first", [True, False])
async def test_a_sampled_stop_token_ends_the_completion_and_is_kept(
    with_stop_first, tiny, start
) -> None:
    engine, prompt = start(tiny), random_ids(0, 10)
    ids, _ = sampled(
        await engine.generate(request(prompt, name="free", seed=3, max_new_tokens=12))
    )
    position = 0 if with_stop_first else 5
    stop = int(ids[position])
    first = ids.tolist().index(stop)

    completion = await engine.generate(
        request(prompt, name="stopped", seed=3, stop_token_ids=(60, stop))
    )

    assert completion.finish_reason == "stop"
    assert sampled(completion)[0].tolist() == ids[: first + 1].tolist()


async def test_a_stop_string_across_two_tokens_ends_with_the_token_that_completes_it(
    tiny, start
) -> None:
    def decode(ids) -> str:
        return "".join(f"<{token}>" for token in ids)

    engine, prompt = start(tiny, decode=decode), random_ids(0, 10)
    ids, _ = sampled(await engine.generate(request(prompt, name="free", seed=3)))
    stop = f"{ids[3]}><{ids[4]}"

    completion = await engine.generate(
        request(prompt, name="stopped", seed=3, stop=("never", stop))
    )

    assert (completion.finish_reason, completion.stop_string) == ("stop", stop)
    assert sampled(completion)[0].tolist() == ids[:5].tolist()
