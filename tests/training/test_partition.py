"""The partition: whole groups, balanced coordinates, equally many micro-batches, columns that find
their way back.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.training import Layout, Plan, merge_columns, repack, sample_weights, shards, union
from agentrl.training.data.partition import partition
from tests.training.harness import make_batch


def layout(
    data_parallel: int = 1, micro_batch_tokens: int = 64, length_scale: float = 1000.0
) -> Layout:
    return Layout(data_parallel, micro_batch_tokens, length_scale)


def whole(lengths: list[int], **settings: float) -> Plan:
    (plan,) = partition(
        np.array(lengths), np.zeros(len(lengths), int), seed=0, layout=layout(**settings)
    )  # type: ignore[arg-type]
    return plan


def described(plan: Plan) -> list[tuple[list[int], tuple[tuple[int, ...], ...]]]:
    return [(part.samples.tolist(), part.micro_batches) for part in plan.coordinates]


def test_micro_batches_are_first_fit_decreasing() -> None:
    # 6 alone leaves 4: 5 opens another, 4 fits the first, 3 the second, 2 the second
    assert described(whole([6, 5, 4, 3, 2], micro_batch_tokens=10))[0][1] == ((0, 2), (1, 3, 4))


def test_longest_samples_go_to_the_least_loaded_coordinate() -> None:
    # nearly linear costs 9 | 7, then 5 to 7, then 4 to 9, then 1 to 12 against 13
    plan = whole([9, 7, 5, 4, 1], data_parallel=2, length_scale=1e9)
    assert [part.samples.tolist() for part in plan.coordinates] == [[0, 3], [1, 2, 4]]


def test_the_quadratic_part_of_the_cost_counts() -> None:
    # with n²/1: 100 + 10 = 110 for the long one, 3 · (16 + 4) = 60 for three short ones
    plan = whole([10, 4, 4, 4], data_parallel=2, length_scale=1.0)
    assert [part.samples.tolist() for part in plan.coordinates] == [[0], [1, 2, 3]]


def test_coordinates_get_equally_many_micro_batches_by_splitting() -> None:
    plan = whole([10, 10, 5, 5, 5, 5], data_parallel=2, micro_batch_tokens=10, length_scale=1e9)
    counts = [len(part.micro_batches) for part in plan.coordinates]
    assert counts[0] == counts[1]
    assert all(micro for part in plan.coordinates for micro in part.micro_batches)


def test_a_coordinate_with_too_few_samples_gets_fillers() -> None:
    # the long one is all that coordinate 0 has, three short ones fill three micro-batches
    plan = whole([30, 10, 10, 10], data_parallel=2, micro_batch_tokens=30, length_scale=1.0)
    repacked = repack(plan, np.array([30, 10, 10, 10]), layout(2, 30))
    assert described(plan) == described(repacked)
    (plan,) = partition(
        np.array([30, 16, 16, 16]), np.zeros(4, int), seed=0, layout=layout(2, 30, 1.0)
    )
    assert [part.micro_batches for part in plan.coordinates] == [((0,), (), ()), ((1,), (2,), (3,))]


def test_mini_batches_hold_whole_groups_in_seeded_order() -> None:
    groups = np.repeat(np.arange(6), 3)
    plans = partition(np.full(18, 5), groups, seed=3, layout=layout(), mini_batch_groups=2)
    held = [sorted(set(groups[plan.samples].tolist())) for plan in plans]
    assert [plan.samples.size for plan in plans] == [6, 6, 6]
    assert sorted(group for pair in held for group in pair) == list(range(6))
    assert held != [[0, 1], [2, 3], [4, 5]]


def test_equal_seeds_give_equal_plans_and_others_do_not() -> None:
    groups = np.arange(12)
    first, again, other = (
        [
            described(p)
            for p in partition(np.full(12, 5), groups, seed=s, layout=layout(), mini_batch_groups=3)
        ]
        for s in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_union_keeps_every_micro_batch_of_its_plans() -> None:
    lengths = np.array([9, 8, 7, 6, 5, 4, 3, 2])
    plans = partition(lengths, np.arange(8), seed=0, layout=layout(2, 12), mini_batch_groups=4)

    def tokens(plan: Plan) -> list[list[tuple[int, ...]]]:
        return [list(part.micro_batches) for part in plan.coordinates]

    joined = tokens(union(plans))
    assert joined == [
        first + second for first, second in zip(*(tokens(plan) for plan in plans), strict=True)
    ]


def test_a_sample_longer_than_a_micro_batch_is_refused_by_setting() -> None:
    with pytest.raises(
        ConfigError,
        match=r"StageSettings\.micro_batch_tokens must be at least .* got 10 .* of 11 tokens",
    ):
        whole([3, 11], micro_batch_tokens=10)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="not empty"):
        whole([])


def test_columns_find_their_way_back() -> None:
    batch = make_batch()
    plans = partition(
        batch.lengths,
        batch.group[batch.trajectory],
        seed=0,
        layout=layout(3, 40),
        mini_batch_groups=1,
    )
    parts = shards(batch, union(plans))
    answers = [{"column": part.batch.token_ids.astype(np.float32)} for part in parts]
    assert (
        merge_columns(answers, parts, batch.cu_seqlens)["column"].tolist()
        == batch.token_ids.tolist()
    )


def test_a_column_of_the_wrong_length_is_refused() -> None:
    batch = make_batch()
    parts = shards(batch, whole(batch.lengths.tolist()))
    with pytest.raises(ValueError, match="'column' has shape"):
        merge_columns([{"column": np.zeros(3, np.float32)}], parts, batch.cu_seqlens)


def test_weights_are_those_of_the_mini_batch_alone() -> None:
    batch = make_batch()
    plans = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(), mini_batch_groups=1
    )
    weights = sample_weights(
        batch, plans[0], lambda counts: 1.0 / np.full(counts.tokens.size, counts.tokens.sum())
    )
    inside = np.isin(np.arange(batch.num_samples), plans[0].samples)
    trained = sum(int((part.batch.loss_mask != 0).sum()) for part in shards(batch, plans[0]))
    np.testing.assert_array_equal(weights, np.where(inside, 1.0 / trained, 0.0))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    data_parallel=st.integers(1, 4),
    rollouts=st.integers(1, 4),
    mini_batch_groups=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_every_sample_is_in_exactly_one_micro_batch_that_fits(
    lengths: list[int], data_parallel: int, rollouts: int, mini_batch_groups: int, seed: int
) -> None:
    sizes, groups = np.array(lengths), np.arange(len(lengths)) // rollouts
    plans = partition(
        sizes,
        groups,
        seed=seed,
        layout=layout(data_parallel, 40),
        mini_batch_groups=mini_batch_groups,
    )
    seen = []
    for plan in plans:
        assert len({len(part.micro_batches) for part in plan.coordinates}) == 1
        for part in plan.coordinates:
            for micro in part.micro_batches:
                rows = np.array(micro, dtype=int)
                assert sizes[rows].sum() <= 40
                seen += rows.tolist()
    assert sorted(seen) == list(range(len(lengths)))
