"""The loss of preference pairs, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from torch import tensor

from agentrl.algorithms import (
    ALGORITHMS,
    AlgorithmSpec,
    PairInputs,
    PairLoss,
    make_algorithm,
)
from agentrl.errors import ConfigError
from tests.algorithms.made import counts_of, rewards_of


def pair_loss(settings: dict[str, Any] | None = None) -> Callable[[PairInputs], PairLoss]:
    loss = make_algorithm("reward_model", settings).pair_loss
    assert loss is not None
    return loss


def inputs(
    chosen: list[float], rejected: list[float], margin: list[float] | None = None
) -> PairInputs:
    return PairInputs(
        tensor(chosen, requires_grad=True),
        tensor(rejected, requires_grad=True),
        tensor(margin or [0.0] * len(chosen)),
    )


def test_it_is_minus_the_log_of_the_chance_that_the_chosen_wins() -> None:
    loss = pair_loss()(inputs([1.0, 0.0, -1.0], [-1.0, 0.0, 1.0])).loss
    # sigmoid(2) = 0.880797, sigmoid(0) = 1/2, sigmoid(-2) = 0.119203
    assert loss.tolist() == pytest.approx([0.126928, math.log(2), 2.126928], abs=1e-6)


def test_a_margin_is_asked_for_on_top() -> None:
    loss = pair_loss()(inputs([3.0], [0.0], [1.0])).loss
    assert loss.tolist() == pytest.approx([0.126928], abs=1e-6)  # 3 - 0 - 1 = 2


def test_the_gradient_is_the_chance_that_the_rejected_wins() -> None:
    given = inputs([1.0], [-1.0])
    pair_loss()(given).loss.sum().backward()  # type: ignore[no-untyped-call]
    assert given.chosen.grad is not None
    assert given.rejected.grad is not None
    assert given.chosen.grad.tolist() == pytest.approx([-0.119203], abs=1e-6)
    assert given.rejected.grad.tolist() == pytest.approx([0.119203], abs=1e-6)


def test_centring_adds_the_square_of_the_sum() -> None:
    loss = pair_loss({"centring": 0.5})(inputs([3.0], [1.0])).loss
    assert loss.tolist() == pytest.approx([0.126928 + 0.5 * 16.0], abs=1e-5)


def test_statistics_count_a_tie_half() -> None:
    stats = pair_loss()(inputs([2.0, 1.0, 0.0], [1.0, 1.0, 4.0])).stats
    assert (
        stats["reward_model/accuracy"].sum.item(),
        stats["reward_model/accuracy"].count,
    ) == (
        1.5,
        3,
    )
    assert stats["reward_model/margin"].sum.item() == 1.0 + 0.0 - 4.0
    assert stats["reward_model/score"].sum.item() == 1.5 + 1.0 + 2.0


def test_every_pair_weighs_the_same_whatever_its_tokens() -> None:
    counts = counts_of([3, 90, 1, 7], [0, 1, 2, 3])
    # two pairs
    assert make_algorithm("reward_model").reduction(counts).tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("use_margin", "credit"), [(True, [1.5, 0.0]), (False, [0.0, 0.0])]
)
def test_margins_are_the_pairs_own_where_they_are_used(
    use_margin: bool, credit: list[float]
) -> None:
    rewards = rewards_of([1.5, 0.0], [0, 0])
    found = make_algorithm("reward_model", {"use_margin": use_margin}).credit(rewards, {})
    assert found.trajectory.tolist() == credit


def test_what_an_algorithm_learns_from_is_known_without_making_it() -> None:
    for name, entry in ALGORITHMS.items():
        assert make_algorithm(name).learns_from == entry.settings.learns_from


def test_an_algorithm_has_one_loss(grpo: AlgorithmSpec) -> None:
    from dataclasses import replace

    with pytest.raises(
        ConfigError, match="must have policy_loss or pair_loss, got neither"
    ):
        replace(grpo, policy_loss=None)
    with pytest.raises(ConfigError, match="got both"):
        replace(grpo, pair_loss=pair_loss())


def test_a_pair_loss_needs_its_pairs_in_one_micro_batch() -> None:
    from dataclasses import replace

    spec = make_algorithm("reward_model")
    assert spec.partition == "group"
    with pytest.raises(
        ConfigError,
        match=r"'reward_model' must declare partition='group', .* got 'trajectory'",
    ):
        replace(spec, partition="trajectory")


@pytest.fixture
def grpo() -> AlgorithmSpec:
    return make_algorithm("grpo")


def test_centring_below_zero_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"RewardModelSettings\.centring must be at least 0, got -1"
    ):
        make_algorithm("reward_model", {"centring": -1})
