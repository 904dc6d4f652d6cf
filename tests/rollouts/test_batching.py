"""Trajectories to a packed batch, each column worked by hand (docs/tokens.md, Batch)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.rollouts import make_batch, turns_of
from agentrl.types import (
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tests.kit.episodes import sampled
from tests.kit.episodes import turn as made_turn

PROMPT, POLICY, OBSERVATION, TEMPLATE, TARGET = SegmentKind
TASK = Task("t")


def seg(
    kind: SegmentKind, ids: list[int], *, logprob: float = -1.0, version: int = 0
) -> Segment:
    return (
        sampled(ids, logprob, version) if kind is POLICY else Segment(kind, np.asarray(ids))
    )


def turn(
    index: int,
    parent: int | None,
    context: list[Segment],
    completion: list[Segment],
    *,
    temperature: float | None = 0.5,
    **more: Any,
) -> Turn:
    sampling = None if temperature is None else SamplingParams(9, temperature=temperature)
    return made_turn(index, context, completion, parent=parent, sampling=sampling, **more)


def trajectory(
    turns: list[Turn], *, group_index: int = 0, rollout_index: int = 0, **more: Any
) -> Trajectory:
    settings: dict[str, Any] = {"status": Status("terminated"), "reward": 1.0} | more
    return Trajectory(
        TASK, group_index, rollout_index, 0, "train", tuple(turns), **settings
    )


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(trajectories[0].group_index, TASK, trajectories)


def linear(**more: Any) -> Trajectory:
    """prompt 1 2, sampled 3 4; then an observation 5, scaffold 6, sampled 7 by two versions of the
    policy, and 8.
    """
    first = turn(
        0,
        None,
        [seg(PROMPT, [1, 2])],
        [seg(POLICY, [3, 4])],
        rewards={"step": 0.5},
        state_key="0a",
    )
    second = turn(
        1,
        0,
        [seg(OBSERVATION, [5]), seg(TEMPLATE, [6])],
        [
            seg(POLICY, [7], logprob=-2.0, version=1),
            seg(POLICY, [8], logprob=-3.0, version=2),
        ],
        state_key="ff",
    )
    return trajectory([first, second], **more)


def credit(*values: float) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def test_the_columns_of_two_trajectories() -> None:
    other = trajectory(
        [turn(0, None, [seg(PROMPT, [9])], [seg(POLICY, [10])])],
        group_index=7,
        rollout_index=2,
        status=Status("truncated", "max_turns"),
        reward=0.25,
    )
    batch = make_batch([group(linear(reward=2.0)), group(other)], credit=credit(1.5, -1.5))
    columns = {
        "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        "kind": [0, 0, 1, 1, 2, 3, 1, 1, 0, 1],
        "loss_mask": [0, 0, 1, 1, 0, 0, 1, 1, 0, 1],
        "rollout_logprobs": [0, 0, -1, -1, 0, 0, -2, -3, 0, -1],
        "policy_versions": [-1, -1, 0, 0, -1, -1, 1, 2, -1, 0],
        "turn_index": [0, 0, 0, 0, 1, 1, 1, 1, 2, 2],
        "cu_seqlens": [0, 8, 10],
        "trajectory": [0, 1],
        "temperature": [0.5, 0.5],
        "turn_trajectory": [0, 0, 1],
        "turn_reward": [0.5, 0.0, 0.0],
        "turn_credit": [0, 0, 0],
        "state_key": [10, 255, 0],
        "group": [0, 1],
        "group_index": [0, 7],
        "rollout_index": [0, 2],
        "reward": [2.0, 0.25],
        "credit": [1.5, -1.5],
        "truncated": [False, True],
    }
    assert {name: getattr(batch, name).tolist() for name in columns} == columns


def branching() -> Trajectory:
    """One root turn, and two turns that go on from it: its tokens are context in the second
    sample.
    """
    root = turn(0, None, [seg(PROMPT, [1])], [seg(POLICY, [2])])
    left = turn(1, 0, [seg(OBSERVATION, [3])], [seg(POLICY, [4])])
    right = turn(2, 0, [seg(OBSERVATION, [5])], [seg(POLICY, [6])])
    return trajectory([root, left, right])


def test_a_turn_on_two_paths_is_trained_in_the_first_alone() -> None:
    batch = make_batch([group(branching())], credit=credit(1.0))
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 1, 2, 5, 6]
    assert batch.loss_mask.tolist() == [0, 1, 0, 1, 0, 0, 0, 1]
    assert batch.trajectory.tolist() == [0, 0]
    assert (batch.num_samples, batch.num_trajectories) == (2, 1)


def test_samples_of_a_trajectory_keep_one_row_of_its_own() -> None:
    batch = make_batch(
        [group(branching(), linear(rollout_index=1))], credit=credit(1.0, 2.0)
    )
    assert batch.trajectory.tolist() == [0, 0, 1]
    assert batch.turn_trajectory.tolist() == [0, 0, 0, 1, 1]
    assert batch.turn_index.tolist()[-8:] == [3, 3, 3, 3, 4, 4, 4, 4]


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_what_failed_or_was_cancelled_is_in_no_column(kind: Any) -> None:
    lost = linear(rollout_index=1, status=Status(kind, "engine"), reward=None)
    batch = make_batch([group(linear(), lost)], credit=credit(1.0))
    assert (
        batch.num_trajectories,
        batch.num_tokens,
        len(turns_of([group(linear(), lost)])),
    ) == (
        1,
        8,
        2,
    )


def test_other_kinds_are_trained_where_an_algorithm_asks_for_them() -> None:
    batch = make_batch(
        [group(linear())], credit=credit(1.0), trained={POLICY, OBSERVATION, TEMPLATE}
    )
    assert batch.loss_mask.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_demonstrations_have_temperature_one() -> None:
    shown = trajectory(
        [turn(0, None, [seg(PROMPT, [1])], [seg(TARGET, [2])], temperature=None)]
    )
    batch = make_batch([group(shown)], credit=credit(0.0), trained={TARGET})
    assert (batch.temperature.tolist(), batch.loss_mask.tolist()) == ([1.0], [0, 1])


def test_mixed_temperatures_in_a_sequence_are_refused() -> None:
    mixed = linear()
    hotter = replace(mixed.turns[1], sampling=SamplingParams(9, temperature=0.7))
    with pytest.raises(
        DataError, match=r"trajectory 0-0-0 was sampled at temperatures \[0\.5, 0\.7\]"
    ):
        make_batch(
            [group(replace(mixed, turns=(mixed.turns[0], hotter)))], credit=credit(1.0)
        )


def test_temperatures_may_differ_between_sequences() -> None:
    hotter = turn(0, None, [seg(PROMPT, [1])], [seg(POLICY, [2])], temperature=0.7)
    batch = make_batch(
        [group(linear(), trajectory([hotter], rollout_index=1))], credit=credit(1.0, 1.0)
    )
    assert batch.temperature.tolist() == pytest.approx([0.5, 0.7])


def test_greedy_samples_are_refused() -> None:
    greedy = trajectory(
        [turn(0, None, [seg(PROMPT, [1])], [seg(POLICY, [2])], temperature=0.0)]
    )
    with pytest.raises(DataError, match=r"sampled greedily \(temperature 0\)"):
        make_batch([group(greedy)], credit=credit(1.0))


@pytest.mark.invariant
def test_a_sample_that_starts_with_no_prompt_is_refused() -> None:
    headless = trajectory([turn(0, None, [seg(TEMPLATE, [1])], [seg(POLICY, [2])])])
    with pytest.raises(
        DataError,
        match="a sample starts with PROMPT, that of trajectory 0-0-0 with TEMPLATE",
    ):
        make_batch([group(headless)], credit=credit(1.0))


def test_nothing_finished_is_refused() -> None:
    with pytest.raises(DataError, match="at least one finished trajectory"):
        make_batch(
            [group(linear(status=Status("failed", "env"), reward=None))], credit=credit()
        )


def test_credit_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"credit must have shape \(1,\), got \(2,\)"):
        make_batch([group(linear())], credit=credit(1.0, 2.0))


def test_a_trajectory_without_tokens_keeps_its_row_and_no_sample() -> None:
    silent = trajectory([turn(0, None, [], [])], rollout_index=1)
    batch = make_batch([group(linear(), silent)], credit=credit(1.0, 1.0))
    assert (batch.num_trajectories, batch.num_samples) == (2, 1)


def test_a_batch_without_any_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="no trajectory of the batch has tokens"):
        make_batch([group(trajectory([turn(0, None, [], [])]))], credit=credit(1.0))
