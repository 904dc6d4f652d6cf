"""The partition: whole groups, siblings side by side, balanced coordinates, equally many
micro-batches, columns that find their way back.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algorithms.algorithm_spec import Unit
from agentrl.errors import ConfigError
from agentrl.training import (
    Layout,
    Plan,
    merge_columns,
    repack,
    sample_weights,
    shards,
    union,
)
from agentrl.training.data.partition import partition
from agentrl.training.data.pieces import SharedSizes
from agentrl.training.data.prefix_tree import PrefixOrder
from benchmarks.partition import measure
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
    assert described(whole([6, 5, 4, 3, 2], micro_batch_tokens=10))[0][1] == (
        (0, 2),
        (1, 3, 4),
    )


def test_longest_samples_go_to_the_least_loaded_coordinate() -> None:
    # nearly linear costs 9 | 7, then 5 to 7, then 4 to 9, then 1 to 12 against 13
    plan = whole([9, 7, 5, 4, 1], data_parallel=2, length_scale=1e9)
    assert [part.samples.tolist() for part in plan.coordinates] == [[0, 3], [1, 2, 4]]


def test_the_quadratic_part_of_the_cost_counts() -> None:
    # with n²/1: 100 + 10 = 110 for the long one, 3 · (16 + 4) = 60 for three short ones
    plan = whole([10, 4, 4, 4], data_parallel=2, length_scale=1.0)
    assert [part.samples.tolist() for part in plan.coordinates] == [[0], [1, 2, 3]]


def test_coordinates_get_equally_many_micro_batches_by_splitting() -> None:
    plan = whole(
        [10, 10, 5, 5, 5, 5], data_parallel=2, micro_batch_tokens=10, length_scale=1e9
    )
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
    assert [part.micro_batches for part in plan.coordinates] == [
        ((0,), (), ()),
        ((1,), (2,), (3,)),
    ]


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
            for p in partition(
                np.full(12, 5), groups, seed=s, layout=layout(), mini_batch_groups=3
            )
        ]
        for s in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_union_keeps_every_micro_batch_of_its_plans() -> None:
    lengths = np.array([9, 8, 7, 6, 5, 4, 3, 2])
    plans = partition(
        lengths, np.arange(8), seed=0, layout=layout(2, 12), mini_batch_groups=4
    )

    def tokens(plan: Plan) -> list[list[tuple[int, ...]]]:
        return [list(part.micro_batches) for part in plan.coordinates]

    joined = tokens(union(plans))
    assert joined == [
        first + second
        for first, second in zip(*(tokens(plan) for plan in plans), strict=True)
    ]


def siblings(prompts: list[int], rollouts: int) -> tuple[np.ndarray, PrefixOrder]:
    """Groups of ``rollouts`` that share a prompt each, and what the samples share."""
    shared = [
        0 if k % rollouts == 0 else prompts[k // rollouts]
        for k in range(rollouts * len(prompts))
    ]
    groups = np.repeat(np.arange(len(prompts)), rollouts)
    return groups, PrefixOrder(np.arange(groups.size), np.array(shared))


def test_samples_with_a_common_prompt_share_a_micro_batch() -> None:
    # two groups of three: a prompt of 60 and 10 tokens each are 90 together; whole samples of 70
    # would not fit in pairs
    groups, prefixes = siblings([60, 60], 3)
    (plan,) = partition(
        np.full(6, 70), groups, seed=0, layout=layout(1, 100), prefixes=prefixes
    )
    assert described(plan)[0][1] == ((0, 1, 2), (3, 4, 5))
    (apart,) = partition(np.full(6, 70), groups, seed=0, layout=layout(1, 100))
    assert len(described(apart)[0][1]) == 6


def test_a_group_is_cut_where_a_micro_batch_is_full() -> None:
    # behind the prompt of 60 there is room for 40: 25 and 15 fill it, 20 and 20 the next one
    groups, prefixes = siblings([60], 4)
    lengths = np.array([80, 85, 75, 80])
    (plan,) = partition(lengths, groups, seed=0, layout=layout(1, 100), prefixes=prefixes)
    assert [set(micro) for micro in described(plan)[0][1]] == [{1, 2}, {0, 3}]


def test_a_sample_goes_where_it_shares_most() -> None:
    # 0 and 1 share 50 tokens, 2 and 3 share 40, all share 10; two fill a micro-batch
    prefixes = PrefixOrder(np.arange(4), np.array([0, 50, 10, 40]))
    (plan,) = partition(
        np.full(4, 60), np.zeros(4, int), seed=0, layout=layout(1, 80), prefixes=prefixes
    )
    assert [set(micro) for micro in described(plan)[0][1]] == [{2, 3}, {0, 1}]


def test_the_cost_is_of_what_is_computed() -> None:
    _, prefixes = siblings([10], 3)
    sizes = SharedSizes(np.array([12, 13, 14]), prefixes, length_scale=4.0)
    # 12 + 13 + 14 - 2 · 10 tokens; 144/4 + (169 - 100)/4 + (196 - 100)/4 pairs
    assert sizes.tokens((0, 1, 2)) == 19
    assert sizes.cost((0, 1, 2)) == 19 + 36 + 17.25 + 24


def test_a_group_is_divided_where_coordinates_would_idle() -> None:
    # one group and two ranks: a prompt of 10 is computed twice, so that each has half
    groups, prefixes = siblings([10], 8)
    (plan,) = partition(
        np.full(8, 60), groups, seed=0, layout=layout(2, 1000), prefixes=prefixes
    )
    assert [len(part.samples) for part in plan.coordinates] == [4, 4]
    assert [len(part.micro_batches) for part in plan.coordinates] == [1, 1]


def test_bundles_change_places_until_coordinates_are_even() -> None:
    # longest first gives 70 + 40 + 40 = 150 against 60 + 50 + 30 + 30 = 170
    lengths = [70, 60, 50, 40, 40, 30, 30]
    plan = whole(lengths, data_parallel=2, micro_batch_tokens=400, length_scale=1e9)
    loads = [sum(lengths[row] for row in part.samples) for part in plan.coordinates]
    assert loads == [160, 160]


def test_samples_of_a_trajectory_stay_on_one_coordinate() -> None:
    # of three samples each; two trajectories are longer than a micro-batch
    trajectory = np.repeat(np.arange(6), 3)
    lengths = np.array([9, 8, 7, 20, 20, 20, 3, 3, 3, 25, 25, 25, 5, 6, 7, 1, 2, 3])
    (plan,) = partition(
        lengths,
        np.repeat([0, 1], 9),
        seed=0,
        layout=layout(3, 30),
        unit="trajectory",
        trajectory=trajectory,
    )
    held = [set(trajectory[part.samples].tolist()) for part in plan.coordinates]
    assert sum(map(len, held)) == 6
    assert max(len(part.micro_batches) for part in plan.coordinates) > 1


def test_a_partition_by_trajectory_needs_trajectories() -> None:
    with pytest.raises(ValueError, match="needs the trajectory of each sample"):
        partition(
            np.ones(2, int), np.zeros(2, int), seed=0, layout=layout(), unit="trajectory"
        )


def test_a_group_that_is_compared_is_in_one_micro_batch() -> None:
    # longest first by sample would part 30 and 2
    lengths, groups = np.array([30, 20, 20, 2, 5, 5]), np.array([0, 1, 2, 0, 1, 2])
    (plan,) = partition(lengths, groups, seed=0, layout=layout(2, 32), unit="group")
    held = [
        set(groups[list(m)].tolist())
        for part in plan.coordinates
        for m in part.micro_batches
    ]
    assert sorted(filter(None, held), key=min) == [{0}, {1}, {2}]


def test_smaller_micro_batches_of_a_forward_keep_siblings_together() -> None:
    groups, prefixes = siblings([60, 60], 4)
    lengths = np.full(8, 70)
    (plan,) = partition(lengths, groups, seed=0, layout=layout(2, 200), prefixes=prefixes)
    smaller = repack(plan, lengths, layout(2, 80), prefixes)
    assert [part.samples.tolist() for part in smaller.coordinates] == [
        part.samples.tolist() for part in plan.coordinates
    ]
    assert [list(map(len, part.micro_batches)) for part in smaller.coordinates] == [
        [2, 2],
        [2, 2],
    ]


@pytest.mark.parametrize(
    ("capacity", "saved"), [(16_384, 0.75), (32_768, 0.9)], ids=["16384", "32768"]
)
def test_rollouts_of_realistic_lengths_share_their_prompts(
    capacity: int, saved: float
) -> None:
    found = measure(0, 8, capacity)
    assert found["saved"] >= saved
    assert found["highest"] <= 1.03


def test_a_sample_longer_than_a_micro_batch_is_refused_by_setting() -> None:
    with pytest.raises(
        ConfigError,
        match=r"TrainConfig\.micro_batch_tokens must be at least .* got 10 .* of 11 tokens",
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
        batch.lengths,
        batch.group[batch.trajectory],
        seed=0,
        layout=layout(),
        mini_batch_groups=1,
    )
    weights = sample_weights(
        batch,
        plans[0],
        lambda counts: 1.0 / np.full(counts.tokens.size, counts.tokens.sum()),
    )
    inside = np.isin(np.arange(batch.num_samples), plans[0].samples)
    trained = sum(
        int((part.batch.loss_mask != 0).sum()) for part in shards(batch, plans[0])
    )
    np.testing.assert_array_equal(weights, np.where(inside, 1.0 / trained, 0.0))


@given(
    own=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    data_parallel=st.integers(1, 4),
    rollouts=st.integers(1, 4),
    mini_batch_groups=st.integers(1, 5),
    unit=st.sampled_from(["sample", "trajectory"]),
    seed=st.integers(0, 9),
)
def test_every_sample_is_in_exactly_one_micro_batch_that_fits(
    own: list[int],
    data_parallel: int,
    rollouts: int,
    mini_batch_groups: int,
    unit: Unit,
    seed: int,
) -> None:
    num = len(own)
    generator = np.random.default_rng(seed)
    trajectory = np.arange(num) // 2
    groups = trajectory // rollouts
    order = generator.permutation(num)
    order = order[np.argsort(groups[order], kind="stable")]
    lengths = np.array(own) + 10
    shared = generator.integers(0, 10, num) * (np.diff(groups[order], prepend=-1) == 0)
    prefixes = PrefixOrder(order, shared)
    sizes = SharedSizes(lengths, prefixes, 1000.0)
    place_of = {row: place for place, row in enumerate(order.tolist())}
    plans = partition(
        lengths,
        groups,
        seed=seed,
        layout=layout(data_parallel, 40),
        mini_batch_groups=mini_batch_groups,
        unit=unit,
        trajectory=trajectory,
        prefixes=prefixes,
    )
    seen = []
    for plan in plans:
        assert len({len(part.micro_batches) for part in plan.coordinates}) == 1
        for part in plan.coordinates:
            micro_batches = [row for micro in part.micro_batches for row in micro]
            assert sorted(micro_batches) == sorted(part.samples.tolist())
            for micro in part.micro_batches:
                assert sizes.tokens(sorted(place_of[row] for row in micro)) <= 40
            seen += micro_batches
        if unit == "trajectory":
            held = [set(trajectory[part.samples].tolist()) for part in plan.coordinates]
            assert sum(map(len, held)) == len(set().union(*held))
    assert sorted(seen) == list(range(num))
