"""A checkpoint's own copy of the groups that run; pickled, since the states of their environments are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.rollouts import GroupState
from agentrl.store import write_bytes

__all__ = ["read_running", "write_running"]


def write_running(path: Path, groups: Sequence[GroupState]) -> None:
    """Writes every sibling of every group as it stands, durably.

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
        groups: tuple[GroupState, ...] = pickle.loads(path.read_bytes())
    except Exception as error:  # boundary: a pickle of another version may raise anything
        raise StoreError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return groups
