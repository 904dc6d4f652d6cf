"""Trajectory codec: a trajectory as a row and arrays, and back without loss.

The row is the one stored form. A live line is the row as JSON with the arrays in one zstd frame; a
sealed shard holds the same row in Parquet columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import StoreError
from agentrl.store.json_text import from_json, to_json
from agentrl.store.trajectories.token_arrays import TokenArrays, token_arrays
from agentrl.store.trajectories.turn_record import (
    SegmentReader,
    decode_turn,
    encode_turn,
    fields_of,
)
from agentrl.types import Status, Task, Trajectory, content_text

Row = dict[str, Any]
"""The columns of a trajectory but for its arrays, by name (``shard.SCHEMA``)."""


def encode_trajectory(
    trajectory: Trajectory, *, step: int, recorded_at: float
) -> tuple[Row, TokenArrays]:
    """The row and arrays of a trajectory that finished in ``step``.

    Args:
        trajectory: what to store.
        step: the training step in which it finished.
        recorded_at: seconds since the epoch; the newest of several records of one id counts.

    Raises:
        StoreError: a side array holds objects or structures.
    """
    arrays = token_arrays(trajectory)
    versions = trajectory.policy_versions
    task = trajectory.task
    status = trajectory.status
    turns = trajectory.turns
    opening = (turns[0].observed if turns else ()) or task.messages
    row = {
        "id": _utf8(trajectory.id),
        "draw": trajectory.group_index,
        "sibling": trajectory.rollout_index,
        "attempt": trajectory.attempt,
        "label": _utf8(trajectory.label),
        "purpose": trajectory.purpose,
        "step": step,
        "task_id": _utf8(task.id),
        "data_source": _utf8(task.data_source),
        "status": status.kind,
        "status_reason": _utf8(status.reason),
        "status_detail": _utf8(status.detail),
        "reward": None if trajectory.reward is None else float(trajectory.reward),
        "rewards": to_json(trajectory.rewards),
        "num_turns": len(turns),
        "num_policy_tokens": trajectory.num_policy_tokens,
        "num_tokens": int(arrays.token_ids.size),
        "policy_version_min": min(versions, default=None),
        "policy_version_max": max(versions, default=None),
        "recorded_at": recorded_at,
        # what a search looks through: the words of the opening conversation
        "prompt": _utf8("\n".join(content_text(message["content"]) for message in opening)),
        "final_text": _utf8(turns[-1].text) if turns else "",
        "turns": to_json([encode_turn(turn) for turn in turns]),
        "task": to_json(fields_of(task)),
        "timings": to_json(trajectory.timings),
        "info": to_json(trajectory.info),
    }
    return row, arrays


def decode_trajectory(row: Mapping[str, Any], arrays: TokenArrays) -> Trajectory:
    """The trajectory of a row.

    Raises:
        StoreError: the row and its arrays do not fit, or a column is not what ``encode_trajectory``
            writes.
    """
    try:
        cursor = SegmentReader(arrays)
        turns = tuple(decode_turn(turn, cursor) for turn in from_json(row["turns"]))
        cursor.assert_used()
        task = from_json(row["task"])
        return Trajectory(
            task=Task(**{**task, "messages": tuple(task["messages"])}),
            group_index=row["draw"],
            rollout_index=row["sibling"],
            attempt=row["attempt"],
            purpose=row["purpose"],
            turns=turns,
            status=Status(row["status"], row["status_reason"], row["status_detail"]),
            rewards=from_json(row["rewards"]),
            reward=row["reward"],
            label=row["label"],
            timings=from_json(row["timings"]),
            info=from_json(row["info"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"trajectory {row.get('id')!r} cannot be read back: {error!r}") from error


def _utf8(text: str) -> str:
    """``text`` as a column can hold it: half of a surrogate pair, which UTF-8 lacks, is written out
    as an escape.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
