"""What a step learned of each token lies with the token: every POLICY token, in turn order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from agentrl.controller.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.metrics import PhaseTimer
from agentrl.rollouts import GroupOutcome, GroupRequest, make_batch
from agentrl.store import EventLog, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import (
    Batch,
    SamplingParams,
    Segment,
    SegmentKind,
    Stats,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tests.controller.test_incidents import Rows, View

TASK = Task("t")


def turn(index: int, parent: int | None, sampled: list[tuple[int, int]], context: int) -> Turn:
    """A turn whose sampled segments are (number of tokens, policy version); every token of an
    episode has an id and a logprob of its own."""
    first = 1000 * index + 1
    kind = SegmentKind.PROMPT if parent is None else SegmentKind.OBSERVATION
    completion = []
    start = first + context
    for size, version in sampled:
        ids = np.arange(start, start + size)
        logprobs = -ids.astype(np.float32)
        completion.append(Segment(SegmentKind.POLICY, ids, logprobs, version))
        start += size
    return Turn(
        index,
        parent,
        (Segment(kind, np.arange(first, first + context)),),
        tuple(completion),
        "",
        {"role": "assistant", "content": ""},
        sampling=SamplingParams(9, temperature=1.0),
    )


def group_of(index: int, rollouts: list[list[Turn]]) -> TrajectoryGroup:
    ended = Status("terminated")
    trajectories = [
        Trajectory(TASK, index, row, 0, "train", tuple(turns), status=ended, reward=1.0)
        for row, turns in enumerate(rollouts)
    ]
    return TrajectoryGroup(index, TASK, tuple(trajectories))


def annotate(
    run: RunDirectory, groups: list[TrajectoryGroup], oldest_version: int
) -> tuple[Batch, dict[str, dict[str, list[float]]]]:
    """Records a step of which each token's advantage is twice its id, and reads it back."""
    credit = np.ones(sum(len(group.finished) for group in groups), np.float32)
    batch = make_batch(groups, credit=credit, oldest_version=oldest_version)
    trained = batch.loss_mask != 0
    batch = batch.join(
        {
            "old_logprobs": np.where(trained, -batch.token_ids, 0).astype(np.float32),
            "advantages": np.where(trained, 2 * batch.token_ids, 0).astype(np.float32),
        }
    )
    events = EventLog(run)
    with TrajectoryWriter(run) as writer:
        recorder = Recorder(
            "rl", writer=writer, events=events, sink=Rows(), view=View(), timer=PhaseTimer()
        )
        for group in groups:
            request = GroupRequest(group.group_index, TASK, len(group.trajectories))
            recorder.record_outcome(GroupOutcome(request, group))
        recorder.take_episodes()
        recorder.record_step(TrainState(step=1), groups, batch, Stats(), {})
    events.close()
    reader = TrajectoryReader(run)
    return batch, {
        one.id: {name: a.tolist() for name, a in reader.get(one.id).annotation.arrays.items()}
        for one in reader.summaries()
    }


def expected(trajectory: Trajectory, oldest_version: int) -> dict[str, list[float]]:
    """By the trajectory alone, with no batch."""
    tokens = [
        (float(token), segment.policy_version >= oldest_version)
        for one in trajectory.turns
        for segment in one.completion
        if segment.kind is SegmentKind.POLICY and segment.policy_version is not None
        for token in segment.token_ids
    ]
    return {
        "old_logprobs": [-token if trained else 0.0 for token, trained in tokens],
        "advantages": [2 * token if trained else 0.0 for token, trained in tokens],
        "loss_mask": [float(trained) for _, trained in tokens],
    }


def test_two_branches_come_in_turn_order_and_stale_tokens_are_there(tmp_path: Path) -> None:
    # the third turn goes on from the first: two samples, of which the first ends at the second turn
    turns = [
        turn(0, None, [(2, 0)], 1),
        turn(1, 0, [(1, 0), (2, 1)], 1),
        turn(2, 0, [(2, 1)], 1),
        turn(3, 1, [(1, 1)], 1),
    ]
    run = RunDirectory.create(tmp_path / "run")
    _, found = annotate(run, [group_of(0, [turns])], oldest_version=1)
    assert found["0-0-0"] == {
        "old_logprobs": [0, 0, 0, -1003, -1004, -2002, -2003, -3002],
        "advantages": [0, 0, 0, 2006, 2008, 4004, 4006, 6004],
        "loss_mask": [0, 0, 0, 1, 1, 1, 1, 1],
    }


@pytest.mark.parametrize("seed", range(20))
def test_every_tokens_value_is_the_trainers(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    groups = []
    for index in range(3):
        rollouts = []
        for _ in range(draw.randint(1, 3)):
            rollouts.append(
                [
                    turn(
                        number,
                        draw.choice([None, *range(number)]) if number else None,
                        [
                            (draw.randint(1, 4), draw.randint(0, 3))
                            for _ in range(draw.randint(1, 3))
                        ],
                        draw.randint(1, 3),
                    )
                    for number in range(draw.randint(1, 7))
                ]
            )
        groups.append(group_of(index, rollouts))
    oldest = draw.randint(0, 2)
    run = RunDirectory.create(tmp_path / "run")
    batch, found = annotate(run, groups, oldest)
    trajectories = [one for group in groups for one in group.trajectories]
    assert found == {one.id: expected(one, oldest) for one in trajectories}
    # and so is every token that the step trained, once
    trained = sum(sum(arrays["loss_mask"]) for arrays in found.values())
    assert trained == np.count_nonzero(batch.loss_mask)
