"""Saved groups: a checkpoint's own copy of the groups that wait to be trained, as a shard of
trajectories, and of those that run, pickled as the states of their environments are."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.rollouts import GroupState
from agentrl.store import decode_trajectory, encode_trajectory, read_shard, write_bytes, write_shard
from agentrl.types import TrajectoryGroup


def write_groups(path: Path, groups: Sequence[TrajectoryGroup]) -> None:
    """Writes every sibling of every group, durably.

    Raises:
        StoreError: the file cannot be written.
    """
    now = time.time()
    trajectories = (trajectory for group in groups for trajectory in group.trajectories)
    write_shard(path, (encode_trajectory(t, step=0, recorded_at=now) for t in trajectories))


def read_groups(path: Path) -> tuple[TrajectoryGroup, ...]:
    """The groups that ``write_groups`` wrote, in their order.

    Raises:
        StoreError: the file cannot be read.
    """
    trajectories = (decode_trajectory(row, arrays) for row, arrays in read_shard(path))
    groups = groupby(trajectories, key=lambda trajectory: trajectory.group_index)
    rollouts = ((index, tuple(own)) for index, own in groups)
    return tuple(TrajectoryGroup(index, own[0].task, own) for index, own in rollouts)


def write_running(path: Path, groups: Sequence[GroupState]) -> None:
    """Writes the state of every rollout of every group, durably.

    Raises:
        StoreError: the file cannot be written.
    """
    write_bytes(path, pickle.dumps(tuple(groups), pickle.HIGHEST_PROTOCOL))


def read_running(path: Path) -> tuple[GroupState, ...]:
    """The groups that ``write_running`` wrote; the environments' states in them stay closed.

    Raises:
        StoreError: the file cannot be read, as where another version of agentrl wrote it.
    """
    try:
        groups = pickle.loads(path.read_bytes())
        _read_fields(groups)
        if not isinstance(groups, tuple) or not all(isinstance(g, GroupState) for g in groups):
            raise TypeError(f"it holds {type(groups).__name__}, not groups")
    except Exception as error:  # boundary: a pickle may raise anything
        raise StoreError(
            f"{path} cannot be read: {type(error).__name__}: {error}; where another version of "
            "agentrl wrote it, resume with that one"
        ) from error
    return groups


def _read_fields(value: object) -> None:
    """Reads every field of what was unpickled: an object of an older class lacks the newer ones.

    Raises:
        AttributeError: it lacks one.
    """
    parts = value if isinstance(value, tuple) else ()
    if is_dataclass(value):
        parts = tuple(getattr(value, field.name) for field in fields(value))
    for part in parts:
        _read_fields(part)
