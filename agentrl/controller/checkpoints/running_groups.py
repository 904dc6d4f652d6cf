"""Running groups: a checkpoint's own copy of the groups in flight, pickled as the states of their
environments are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.rollouts import GroupState
from agentrl.store import write_bytes


def write_running(path: Path, groups: Sequence[GroupState]) -> None:
    """Writes the state of every rollout of every group, durably.

    Raises:
        StoreError: the file cannot be written.
    """
    write_bytes(path, pickle.dumps(tuple(groups), pickle.HIGHEST_PROTOCOL))


def read_running(path: Path) -> tuple[GroupState, ...]:
    """The groups that ``write_running`` wrote; the environments' states in them stay closed.

    Raises:
        StoreError: the file cannot be read, or another version of agentrl wrote it.
    """
    try:
        groups = pickle.loads(path.read_bytes())
    except (AttributeError, ImportError, TypeError) as error:
        # a class, or a field of one, that this version does not have
        raise _of_another_version(path, str(error)) from error
    except Exception as error:  # boundary: a pickle may raise anything
        raise StoreError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(groups, tuple) or not all(isinstance(g, GroupState) for g in groups):
        raise _of_another_version(path, f"it holds {type(groups).__name__}, not groups")
    return groups


def _of_another_version(path: Path, why: str) -> StoreError:
    return StoreError(
        f"{path} was written by another version of agentrl, and its episodes cannot go on here: "
        f"{why}. Resume with the version that wrote it"
    )
