"""The plan of a resharding: every rank gets what it wants, receives no number that it has, and no
bucket is too large.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pytest

from agentrl.engines.tensor_slice import TensorSlice
from agentrl.errors import EngineError
from agentrl.weight_sync.reshard_plan import Bucket, plan_buckets

Held: TypeAlias = list[dict[str, TensorSlice]]
Wanted: TypeAlias = list[list[TensorSlice]]


def by_rows(name: str, shape: tuple[int, ...], ranks: int) -> Held:
    """As FSDP2 divides a tensor."""
    whole, size = TensorSlice.whole(name, shape), -(-shape[0] // ranks)
    ends = [min(shape[0], place * size) for place in range(ranks + 1)]
    return [{name: whole.part(0, ends[rank], ends[rank + 1])} for rank in range(ranks)]


def received(buckets: Sequence[Bucket], rank: int) -> int:
    return sum(
        move.block.numel
        for bucket in buckets
        for move in bucket.moves
        if move.target == rank != move.source
    )


ROWS, COLUMNS = (0, 2), (1, 2)


@pytest.mark.parametrize(
    ("ranks", "tp", "dim", "share"),
    [
        # M/t - own where a rank's rows lie in its shard, by hand: of 16 x 8 numbers
        (2, 1, 0, 64),
        (4, 1, 0, 96),
        (2, 2, 0, 0),
        (4, 2, 0, 32),
        (2, 2, 1, 32),
        (4, 2, 1, 48),
    ],
)
def test_a_rank_receives_its_shard_less_what_it_holds(
    ranks: int, tp: int, dim: int, share: int
) -> None:
    held = by_rows("w", (16, 8), ranks)
    whole = TensorSlice.whole("w", (16, 8))
    size = whole.shape[dim] // tp
    wanted = [
        [whole.part(dim, place * size, (place + 1) * size)]
        for place in (rank * tp // ranks for rank in range(ranks))
    ]
    buckets = plan_buckets(held, wanted, 10**6)
    assert [received(buckets, rank) for rank in range(ranks)] == [share] * ranks
    way = "nothing" if not share else "gather" if tp == 1 else "exchange"
    assert [bucket.way for bucket in buckets] == [way]


def test_only_a_rank_that_wants_a_tensor_is_sent_it() -> None:
    held = by_rows("w", (16, 8), 4)
    buckets = plan_buckets(held, [[], [TensorSlice.whole("w", (16, 8))], [], []], 10**6)
    assert [received(buckets, rank) for rank in range(4)] == [0, 96, 0, 0]
    assert [bucket.way for bucket in buckets] == ["exchange"]


def test_of_two_copies_the_nearest_is_sent() -> None:
    # two replicas of two ranks: each gathers within itself
    held = [*by_rows("w", (4, 2), 2), *by_rows("w", (4, 2), 2)]
    buckets = plan_buckets(held, [[TensorSlice.whole("w", (4, 2))]] * 4, 10**6)
    pairs = {(move.source, move.target) for bucket in buckets for move in bucket.moves}
    assert pairs == {(0, 0), (1, 0), (0, 1), (1, 1), (2, 2), (3, 2), (2, 3), (3, 3)}


def test_a_tensor_of_one_rank_is_not_gathered_with_room_for_as_much_of_each() -> None:
    whole = TensorSlice.whole("expert", (8, 8))
    (bucket,) = plan_buckets([{"expert": whole}, {}], [[whole], [whole]], 10**6)
    assert bucket.way == "exchange"


def test_names_of_single_ranks_stand_between_those_of_all() -> None:
    def own(*names: str) -> dict[str, TensorSlice]:
        return {name: TensorSlice.whole(name, (2,)) for name in names}

    held = [
        own("first", "expert 0", "last", "end 0"),
        own("first", "expert 1", "last", "end 1"),
    ]
    (bucket,) = plan_buckets(held, [[], []], 10**6)
    assert bucket.names == ("first", "expert 0", "expert 1", "last", "end 0", "end 1")


def test_what_nobody_holds_is_named() -> None:
    held = by_rows("w", (4, 2), 2)
    with pytest.raises(
        EngineError, match=r"wants 'v', which the trainer has not; .* model\.path"
    ):
        plan_buckets(held, [[TensorSlice.whole("v", (4,))], []], 10)
    taller = TensorSlice.whole("w", (6, 2))
    with pytest.raises(EngineError, match=r"no rank holds \(2, 2\) at \(4, 0\) of 'w'"):
        plan_buckets(held, [[taller], []], 10)


def random_case(rng: random.Random, ranks: int) -> tuple[Held, Wanted]:
    """Tensors that ranks hold by rows or columns, whole, or with copies; and slices of them."""
    held: Held = [{} for _ in range(ranks)]
    wanted: Wanted = [[] for _ in range(ranks)]
    for number in range(rng.randrange(1, 6)):
        name = str(number)
        shape = tuple(rng.randrange(1, 9) for _ in range(rng.randrange(1, 4)))
        whole, dim = TensorSlice.whole(name, shape), rng.randrange(len(shape))
        kind = rng.choice(("divided", "whole", "of one", "replicas"))
        parts = ranks if kind != "replicas" or ranks % 2 else ranks // 2
        ends = sorted(rng.choices(range(shape[dim] + 1), k=parts - 1))
        ends = [0, *ends, shape[dim]]
        alone = rng.randrange(ranks)
        for rank in range(ranks):
            if kind == "whole" or (kind == "of one" and rank == alone):
                held[rank][name] = whole
            elif kind != "of one":
                place = rank % parts
                held[rank][name] = whole.part(dim, ends[place], ends[place + 1])
            for _ in range(rng.choice((0, 1, 1, 2))):
                block = whole
                for axis, size in enumerate(shape):
                    if rng.random() < 0.5:
                        block = block.part(axis, *sorted(rng.sample(range(size + 1), 2)))
                if block not in wanted[rank]:
                    wanted[rank].append(block)
            if rng.random() < 0.5:
                wanted[rank] = [one for one in wanted[rank] if one.name != name] + [whole]
    return held, wanted


@pytest.mark.parametrize("seed", range(40))
def test_every_wish_is_made_up_of_what_ranks_hold_each_number_once(seed: int) -> None:
    rng = random.Random(seed)
    held, wanted = random_case(rng, rng.choice((1, 2, 3, 4)))
    size = rng.choice((8, 40, 10**6))
    buckets = plan_buckets(held, wanted, size)
    filled: Counter[tuple[int, TensorSlice, int]] = Counter()
    complete: list[str] = []
    for bucket in buckets:
        for move in (*bucket.moves, *bucket.kept):
            assert move.block.overlap(held[move.source][move.block.name]) == move.block
            assert move.block.name not in complete
            places = np.arange(np.prod(move.wish.shape)).reshape(move.wish.shape)
            for number in places[move.block.slices].reshape(-1).tolist():
                filled[move.target, move.wish, number] += 1
            own = held[move.target].get(move.block.name)
            if move.source != move.target and own is not None:
                assert move.block.overlap(own) is None
        assert all(move.source == move.target for move in bucket.kept)
        complete += bucket.complete
        hold_within(bucket, len(held), size)
    assert sorted(complete) == sorted({name for own in held for name in own})
    assert filled == Counter(
        (rank, wish, number)
        for rank, own in enumerate(wanted)
        for wish in own
        for number in np.arange(np.prod(wish.shape))
        .reshape(wish.shape)[wish.slices]
        .reshape(-1)
        .tolist()
    )


def hold_within(bucket: Bucket, ranks: int, size: int) -> None:
    """A bucket above the size has blocks of a few numbers, which cannot be divided further."""
    away = [
        move
        for move in bucket.moves
        if bucket.way == "gather" or move.source != move.target
    ]
    sent, got = Counter[int](), Counter[int]()
    for move in away:
        sent[move.source] += move.block.numel
        got[move.target] += move.block.numel
    if bucket.way == "gather":
        most = max(sent.values()) // ranks * (2 * ranks + 1)
    else:
        most = max((sent[rank] + got[rank] for rank in range(ranks)), default=0)
    if most > size:
        assert len(bucket.names) == 1
        assert {move.block.numel for move in away} == {1}


def test_a_large_tensor_goes_in_several_buckets_and_small_ones_share_one() -> None:
    held: Held = [{}, {}]
    for name, shape in (("large", (64, 8)), ("a", (2, 4)), ("b", (2, 4)), ("c", (64, 2))):
        for rank, own in enumerate(by_rows(name, shape, 2)):
            held[rank] |= own
    wanted = [[TensorSlice.whole(name, one.shape) for name, one in held[0].items()]] * 2
    buckets = plan_buckets(held, wanted, 128)
    # 256 numbers of each rank make 1,280: what it sends, and twice what both do; 64ths fit into a
    # quarter of a bucket, which is left whatever a rank keeps; 8ths of the last beside its 64
    names = [bucket.names for bucket in buckets]
    assert names == [("large",)] * 64 + [("a", "b")] + [("c",)] * 8
    complete = [bucket.complete for bucket in buckets]
    assert [one for one in complete if one] == [("large",), ("a", "b"), ("c",)]
    assert complete[63:65] == [("large",), ("a", "b")]
