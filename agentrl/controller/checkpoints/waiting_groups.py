"""Waiting groups: a checkpoint's own copy of the groups that wait to be trained, as a shard of
trajectories."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from agentrl.store import decode_trajectory, encode_trajectory, read_shard, write_shard
from agentrl.types import TrajectoryGroup


def write_groups(path: Path, groups: Sequence[TrajectoryGroup]) -> None:
    """Writes every sibling of every group, durably.

    Raises:
        StoreError: the file cannot be written.
    """
    now = time.time()
    trajectories = (trajectory for group in groups for trajectory in group.trajectories)
    write_shard(
        path,
        (encode_trajectory(trajectory, step=0, recorded_at=now) for trajectory in trajectories),
    )


def read_groups(path: Path) -> tuple[TrajectoryGroup, ...]:
    """The groups that ``write_groups`` wrote, in their order.

    Raises:
        StoreError: the file cannot be read.
    """
    trajectories = (decode_trajectory(row, arrays) for row, arrays in read_shard(path))
    siblings = (
        tuple(own)
        for _, own in groupby(trajectories, key=lambda trajectory: trajectory.group_index)
    )
    return tuple(TrajectoryGroup(own[0].group_index, own[0].task, own) for own in siblings)
