"""Invariant 3: whatever the shape of an episode, every sampled token is trained exactly once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollouts import make_batch
from agentrl.types import (
    SamplingParams,
    Segment,
    SegmentKind,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from tests.kit.episodes import sampled, trajectory, turn

TASK = Task("t")

# for each turn after the first: which earlier turn it goes on from, or none (it starts a sequence
# of its own)
shapes = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        *(st.one_of(st.none(), st.integers(0, max(0, index - 1))) for index in range(n))
    )
)


def episode(shape: tuple[int | None, ...], rollout_index: int) -> Trajectory:
    """Each sampled token has an id of its own."""
    turns = []
    for index, wanted in enumerate(shape):
        parent = None if index == 0 else wanted
        number = 1000 * (1 + rollout_index) + 10 * index
        kind = SegmentKind.PROMPT if parent is None else SegmentKind.OBSERVATION
        context = [Segment(kind, np.asarray([1, 2]))]
        completion = [
            sampled([number, number + 1], -1.0),
            sampled([number + 2], -1.0, version=1),
        ]
        turns.append(
            turn(index, context, completion, parent=parent, sampling=SamplingParams(9))
        )
    return trajectory(*turns, task=TASK, rollout=rollout_index, reward=0.0)


@pytest.mark.invariant
@settings(max_examples=200, deadline=None)
@given(st.lists(shapes, min_size=1, max_size=3))
def test_every_sampled_token_is_trained_exactly_once(
    forest: list[tuple[int | None, ...]],
) -> None:
    trajectories = tuple(
        episode(shape, rollout_index) for rollout_index, shape in enumerate(forest)
    )
    batch = make_batch(
        [TrajectoryGroup(0, TASK, trajectories)], credit=np.zeros(len(forest), np.float32)
    )
    trained = Counter(batch.token_ids[batch.loss_mask != 0].tolist())
    sampled = [
        int(token)
        for t in trajectories
        for s in t.policy_segments()
        for token in s.token_ids
    ]
    assert trained == Counter(sampled)
    assert not batch.loss_mask[
        batch.cu_seqlens[:-1]
    ].any()  # the first token of a sample is never trained
    assert not batch.rollout_logprobs[batch.kind != SegmentKind.POLICY].any()
