"""Off-policy corrections by hand: weights by token, sequence and geometric mean, rejection."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import tensor

from agentrl.algorithms import ALGORITHMS, Correction, PolicyInputs, make_algorithm
from agentrl.algorithms.functions.corrections import CORRECTED
from agentrl.types import Stat, Stats
from tests.algorithms.made import policy_inputs

ROWS = tensor([0, 0, 1, 1])
PLAYED = [
    name for name in ALGORITHMS if ALGORITHMS[name].settings.learns_from == "rollouts"
]


def tokens(*ratios: float, sampled: list[bool] | None = None) -> PolicyInputs:
    """Two samples of two tokens, with r = π_old / π_rollout given."""
    rollout = torch.full((4,), -2.0, dtype=torch.float64)
    old = rollout + tensor(ratios, dtype=torch.float64).log()
    told = tensor(sampled or [True] * 4)
    return policy_inputs(old, rollout_logprobs=rollout, sample_row=ROWS, sampled=told)


def differing(nats: float) -> Stats:
    """The statistics of a step whose engine was so far from the trainer on four tokens."""
    return Stats({"mismatch/engine/logp_abs": Stat(4 * nats, 4)})


def corrected(given: PolicyInputs, **settings: Any) -> Correction:
    correction = make_algorithm("grpo", {"rollout_correction": settings}).correction
    assert correction is not None
    found = correction(given)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"level": "token", "cap": 2.0}, [2.0, 0.5, 1.5, 1.0]),
        ({"level": "token", "cap": 2.0, "floor": 0.8}, [2.0, 0.8, 1.5, 1.0]),
        ({"level": "token", "cap": 2.0, "outside": "mask"}, [0.0, 0.5, 1.5, 1.0]),
        ({"level": "token", "cap": 5.0, "floor": 0.8, "outside": "mask"}, [4.0, 0.0, 1.5, 1.0]),
        # products 4 · .5 = 2 and 1.5; geometric means their roots
        ({"level": "sequence", "cap": 1.8}, [1.8, 1.8, 1.5, 1.5]),
        ({"level": "geometric", "cap": 9.0}, [math.sqrt(2)] * 2 + [math.sqrt(1.5)] * 2),
        # k2 of log 4, log .5, log 1.5, 0: .96, .24, .08, 0
        ({"reject": "token", "reject_by": "k2", "reject_above": 0.5}, [0.0, 1.0, 1.0, 1.0]),
        ({"reject": "sequence_max", "reject_by": "k2", "reject_above": 0.5}, [0.0, 0.0, 1.0, 1.0]),
        ({"reject": "sequence_mean", "reject_by": "k2", "reject_above": 0.7}, [1.0] * 4),
        ({"reject": "sequence_sum", "reject_by": "k2", "reject_above": 0.7}, [0.0, 0.0, 1.0, 1.0]),
        # k1 is -log r: -1.39, .69, -.41, 0
        (
            {"reject": "token", "reject_by": "k1", "reject_above": 0.5, "reject_below": -0.5},
            [0.0, 0.0, 1.0, 1.0],
        ),
        (
            {"level": "token", "cap": 2.0, "reject": "token", "reject_by": "k3",
             "reject_above": 1.0},
            [0.0, 0.5, 1.5, 1.0],
        ),
    ],
)  # fmt: skip
def test_factors_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    found = corrected(tokens(4.0, 0.5, 1.5, 1.0), **settings)
    assert found.factor.tolist() == pytest.approx(expected, abs=1e-12)


def test_what_nobody_sampled_counts_as_on_policy() -> None:
    given = tokens(4.0, 4.0, 4.0, 4.0, sampled=[True, False, False, False])
    found = corrected(given, level="sequence", cap=9.0)
    assert found.factor.tolist() == pytest.approx([4.0, 1.0, 1.0, 1.0])


def test_the_statistics_give_the_effective_sample_size() -> None:
    stats = corrected(tokens(4.0, 1.0, 1.0, 1.0), level="token", cap=3.0).stats
    means = {name: float(stat.sum) / stat.count for name, stat in stats.items()}
    assert means["mismatch/truncated_frac"] == 0.25
    # (mean w)² / mean w² = 1.5² / 3
    assert means["mismatch/weight"] ** 2 / means["mismatch/weight_sq"] == pytest.approx(
        0.75
    )


def test_huge_ratios_stay_numbers() -> None:
    rollout = tensor([0.0, -1e4, -1e4, 0.0], dtype=torch.float64)
    old = tensor([-1e4, 0.0, 0.0, -1e4], dtype=torch.float64)
    given = policy_inputs(old, rollout_logprobs=rollout, sample_row=ROWS)
    for level in ("token", "sequence", "geometric"):
        factor = corrected(
            given, level=level, reject="sequence_sum", reject_above=1e9
        ).factor
        assert bool(torch.isfinite(factor).all())
        assert not factor.requires_grad


def test_level_none_corrects_nothing() -> None:
    settings = {"rollout_correction": {"level": "none"}}
    assert make_algorithm("grpo", settings).correction is None


def test_an_engine_that_differs_is_corrected_from_the_next_step_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    algorithm = make_algorithm("grpo")
    assert algorithm.correction is not None
    given = tokens(4.0, 0.5, 1.5, 1.0)
    assert algorithm.correction(given) is None

    near = algorithm.next_state({}, differing(0.002))
    far = algorithm.next_state(near, differing(0.02))
    weighed = algorithm.correction(replace(given, state=far))
    assert weighed is not None
    assert (near, far) == ({}, {CORRECTED: 1.0})
    assert weighed.factor.tolist() == pytest.approx([2.0, 0.5, 1.5, 1.0])
    # it stays, and is told once
    for stats in (Stats(), differing(0.001), differing(0.02)):
        assert algorithm.next_state(far, stats) == far
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events == ["rollout_correction"]
    assert "are 0.02 nats from the trainer's on average" in caplog.text


def test_a_state_of_the_algorithms_own_stays_beside_it() -> None:
    algorithm = make_algorithm("grpo", {"kl_coef": 0.1, "kl_target": 0.5})
    own = algorithm.next_state(algorithm.initial_state, Stats())
    assert algorithm.next_state(algorithm.initial_state, differing(0.02)) == {
        **own,
        CORRECTED: 1.0,
    }


@pytest.mark.parametrize("name", PLAYED)
def test_auto_corrects_each_loss_but_those_that_compare_with_the_sampler(name: str) -> None:
    algorithm = make_algorithm(name)
    assert algorithm.policy_loss is not None
    losses = []
    for sampler in (-2.0, -2.5):
        given = policy_inputs(
            torch.full((4,), -2.0, dtype=torch.float64),
            rollout_logprobs=torch.full((4,), sampler, dtype=torch.float64),
            advantages=torch.ones(4, dtype=torch.float64),
        )
        losses.append(algorithm.policy_loss(given).loss)
    state = algorithm.next_state(algorithm.initial_state, differing(0.02))
    if not torch.equal(*losses):
        assert CORRECTED not in state
        return
    assert algorithm.correction is not None
    assert not algorithm.corrects_staleness
    assert algorithm.correction(given) is None
    weighed = algorithm.correction(replace(given, state=state))
    assert weighed is not None
    assert weighed.factor.tolist() == pytest.approx([math.exp(0.5)] * 4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("grpo", {"rollout_correction": {"level": "none"}}),
        ("grpo", {"rollout_correction": {"level": "token"}}),
        # the ratio of the loss is against the sampler already
        ("grpo", {"old_logprobs": "rollout"}),
        ("dppo", {}),
    ],
)
def test_a_step_changes_no_other_correction(name: str, settings: dict[str, Any]) -> None:
    assert make_algorithm(name, settings).next_state({}, differing(9.0)) == {}
