"""What a stage says of itself: that its weights did not change, that its settings do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl.algorithms import (
    AlgorithmSpec,
    AlgorithmState,
    Credit,
    Rewards,
    make_algorithm,
)
from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.store import read_jsonl
from tests.controller.replay import learn


def told(
    model: Path, folder: Path, change: Callable[[AlgorithmSpec], AlgorithmSpec]
) -> list[tuple[str, str]]:
    """The warnings among the events of a stage of three steps."""
    group = LocalRoleGroup(threads=1)
    try:
        learn(group, model, folder / "run", num_steps=3, change=change)
    finally:
        group.close()
    events = read_jsonl(folder / "run" / "events.jsonl")
    return [(row["event"], row["message"]) for row in events if row["level"] == "warning"]


def test_a_stage_whose_weights_did_not_change_says_so(model: Path, tmp_path: Path) -> None:
    def worthless(rewards: Rewards, state: AlgorithmState) -> Credit:
        return Credit(np.zeros(rewards.reward.size), np.zeros(rewards.turn_reward.size))

    (only,) = told(model, tmp_path, lambda algorithm: replace(algorithm, credit=worthless))
    assert only == (
        "weights_unchanged",
        "stage rl ends with the very weights that it began with: in 3 steps its actor learned "
        "nothing; see optim/lr and optim/grad_norm, and how many steps had no signal",
    )


def test_a_concern_about_the_settings_is_told_once(model: Path, tmp_path: Path) -> None:
    def concern(rewards: Rewards) -> str:
        return f"{rewards.reward.size} trajectories are short"

    assert told(model, tmp_path, lambda algorithm: replace(algorithm, concern=concern)) == [
        ("algorithm_concern", "step 1: 24 trajectories are short")
    ]


@pytest.mark.parametrize(
    ("lengths", "is_told"),
    [
        ([39, 39, 500], True),
        # at 40 tokens λ is 0.5 for VAPO's α of 0.05
        ([39, 40, 500], False),
        ([39, 39, 40, 40], False),
    ],
)
def test_vapo_tells_of_trajectories_that_are_too_short(
    lengths: list[int], is_told: bool
) -> None:
    number = len(lengths)
    rewards = Rewards(
        reward=np.zeros(number),
        group=np.zeros(number, np.int64),
        num_tokens=np.array(lengths),
        truncated=np.zeros(number, np.bool_),
        turn_trajectory=np.arange(number),
        turn_reward=np.zeros(number),
        state_key=np.zeros(number, np.uint64),
    )
    concern = make_algorithm("vapo").concern
    assert concern is not None
    wanted = "below 0.5 to 2 of 3 trajectories, whose l trained tokens are fewer than 40,"
    assert (wanted in concern(rewards)) == bool(concern(rewards)) == is_told
    assert make_algorithm("ppo").concern is None
