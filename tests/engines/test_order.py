"""In which order rows lie, and how far they attend."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from agentrl.engines.torch.model.decoder import NativeDecoder
from agentrl.engines.torch.row_layout import attention_blocks, exchanges
from tests.engines.tiny import random_ids, request


def arranged(lengths: list[int]) -> list[int]:
    order = list(lengths)
    for one, other in exchanges(np.array(lengths)):
        order[one], order[other] = order[other], order[one]
    return order


def test_idle_rows_go_behind_and_the_longest_of_the_tail_to_the_front() -> None:
    assert arranged([50, 0, 60, 0, 40, 70]) == [50, 70, 60, 40, 0, 0]


def test_one_idle_row_in_ten_is_left_where_it_is() -> None:
    assert exchanges(np.array([50] * 9 + [0] + [50] * 10)) == []


def test_a_row_much_longer_than_the_others_goes_to_the_front() -> None:
    assert arranged([50, 60, 55, 300, 50]) == [300, 60, 55, 50, 50]


def test_rows_of_like_length_stay() -> None:
    assert exchanges(np.array([50, 60, 90, 40])) == []


def test_nothing_runs_nothing_moves() -> None:
    assert exchanges(np.zeros(8, dtype=np.int64)) == []


@pytest.mark.parametrize("seed", range(50))
def test_afterwards_few_rows_of_the_span_are_idle(seed) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 400, 64) * (rng.random(64) < rng.random())
    order = arranged(lengths.tolist())
    assert sorted(order) == sorted(lengths.tolist())
    running = int(np.count_nonzero(order))
    span = int(np.flatnonzero(order)[-1]) + 1 if running else 0
    assert span - running <= max(0.25 * span, 1)


def test_rows_of_like_length_are_one_block_rounded_up() -> None:
    assert attention_blocks(np.array([40, 33, 0, 47]), 128) == ((4, 48),)


def test_long_rows_in_front_are_a_block_of_their_own() -> None:
    lengths = np.array([300, 280] + [60] * 30)
    assert attention_blocks(lengths, 512) == ((2, 304), (32, 64))


def test_a_block_ends_at_what_the_cache_holds() -> None:
    assert attention_blocks(np.array([100]), 100) == ((1, 100),)


@pytest.mark.parametrize("seed", range(50))
def test_every_row_attends_to_all_its_keys(seed) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 1000, int(rng.integers(1, 80)))
    first = 0
    for end, num_keys in attention_blocks(lengths, 1008):
        assert lengths[first:end].max() <= num_keys <= 1008
        first = end
    assert first == lengths.size


async def test_the_batch_shrinks_with_the_requests_that_run(
    tiny, start, monkeypatch
) -> None:
    sizes, decode = [], NativeDecoder.decode

    def watched(self, tokens, positions, blocks):
        sizes.append(tokens.shape[0])
        return decode(self, tokens, positions, blocks)

    monkeypatch.setattr(NativeDecoder, "decode", watched)
    engine = start(tiny, max_running=24)
    asked = [
        request(random_ids(n, 12), name=f"{n}", seed=n, max_new_tokens=6 if n % 8 else 90)
        for n in range(24)
    ]
    await asyncio.gather(*(engine.generate(one) for one in asked))
    assert max(sizes) == 24
    assert set(sizes[-60:]) == {3}  # the three that run long, wherever they began


async def test_a_prompt_is_still_found_where_its_row_was_moved(tiny, start) -> None:
    engine = start(tiny, max_running=24)
    asked = [
        request(random_ids(n, 12), name=f"{n}", seed=n, max_new_tokens=6 if n < 23 else 60)
        for n in range(24)
    ]
    # the last row went to the front
    await asyncio.gather(*(engine.generate(one) for one in asked))
    late = await engine.generate(request(random_ids(23, 12), name="late"))
    assert late.cached_tokens == 11
