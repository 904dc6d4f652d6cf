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
from agentrl.store import (
    decode_trajectory,
    encode_trajectory,
    read_shard,
    write_bytes,
    write_shard,
)
from agentrl.types import TrajectoryGroup


def write_groups(folder: Path, groups: Sequence[TrajectoryGroup]) -> None:
    """Writes every sibling of every group, durably: a shard a policy.

    Raises:
        StoreError: a file cannot be written.
    """
    now = time.time()
    for policy in dict.fromkeys(group.policy for group in groups):
        own = (t for group in groups if group.policy == policy for t in group.trajectories)
        rows = (encode_trajectory(one, step=0, recorded_at=now) for one in own)
        write_shard(folder / f"{policy}.parquet", rows)


def read_groups(folder: Path) -> tuple[TrajectoryGroup, ...]:
    """The groups that ``write_groups`` wrote, those of each policy in their order; none without a
    folder.

    Raises:
        StoreError: a file cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*.parquet")):
        trajectories = (decode_trajectory(row, arrays) for row, arrays in read_shard(path))
        for index, siblings in groupby(trajectories, key=lambda one: one.group_index):
            own = tuple(siblings)
            found.append(TrajectoryGroup(index, own[0].task, own, path.stem))
    return tuple(found)


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
        if not isinstance(groups, tuple) or not all(
            isinstance(g, GroupState) for g in groups
        ):
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
