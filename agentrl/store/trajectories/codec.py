"""Trajectory codec: a trajectory as a row and arrays, and back without loss.

The row is the one stored form. A live line has its short columns, and a zstd frame its texts and
arrays; a sealed shard holds the same row in Parquet columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.errors import StoreError
from agentrl.guards.printable import encodable
from agentrl.store.json_text import from_json, to_json
from agentrl.store.trajectories.columns import Row
from agentrl.store.trajectories.token_arrays import TokenArrays, token_arrays
from agentrl.store.trajectories.turn_record import (
    SegmentReader,
    decode_turn,
    encode_turn,
    fields_of,
    sequence_indices,
)
from agentrl.types import CallRecord, Status, Task, Trajectory, Turn, content_text


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
        "id": encodable(trajectory.id),
        "group_index": trajectory.group_index,
        "rollout_index": trajectory.rollout_index,
        "attempt": trajectory.attempt,
        "group_size": trajectory.group_size,
        "label": encodable(trajectory.label),
        "purpose": trajectory.purpose,
        "stage": encodable(trajectory.stage),
        "env": encodable(trajectory.env),
        "agents": _once(turn.agent for turn in turns),
        "step": step,
        "task_id": encodable(task.id),
        "data_source": encodable(task.data_source),
        "status": status.kind,
        "status_reason": encodable(status.reason),
        "status_detail": encodable(status.detail),
        "reward": None if trajectory.reward is None else float(trajectory.reward),
        "rewards": to_json(trajectory.rewards),
        "reasons": to_json(trajectory.reasons),
        "num_turns": len(turns),
        **_calls(turns),
        "num_policy_tokens": trajectory.num_policy_tokens,
        "num_tokens": int(arrays.token_ids.size),
        "policy_version_min": min(versions, default=None),
        "policy_version_max": max(versions, default=None),
        "started_at": float(trajectory.started_at),
        "ended_at": float(trajectory.ended_at),
        "recorded_at": recorded_at,
        # what a search looks through: the words of the opening conversation
        "prompt": encodable("\n".join(content_text(message["content"]) for message in opening)),
        "final_text": encodable(turns[-1].text) if turns else "",
        "turns": to_json(list(map(encode_turn, turns, sequence_indices(turns)))),
        "task": to_json(fields_of(task)),
        "timings": to_json(trajectory.timings),
        "info": to_json(trajectory.info),
        "first_state": to_json(trajectory.first_state),
        "last_observed": to_json(trajectory.last_observed),
        "last_info": to_json(trajectory.last_info),
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
            group_index=row["group_index"],
            rollout_index=row["rollout_index"],
            attempt=row["attempt"],
            purpose=row["purpose"],
            turns=turns,
            status=Status(row["status"], row["status_reason"], row["status_detail"]),
            rewards=from_json(row["rewards"]),
            reward=row["reward"],
            label=row["label"],
            timings=from_json(row["timings"]),
            info=from_json(row["info"]),
            stage=row["stage"],
            env=row["env"],
            group_size=row["group_size"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            reasons=from_json(row["reasons"]),
            first_state=from_json(row["first_state"]),
            last_observed=tuple(from_json(row["last_observed"])),
            last_info=from_json(row["last_info"]),
        )
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"trajectory {row.get('id')!r} cannot be read back: {error!r}") from error


def _calls(turns: Sequence[Turn]) -> Row:
    """The columns about tool calls; one that could not be read is a call and an error."""
    calls = [call for turn in turns for call in turn.calls]
    errors = [_error(call) for call in calls]
    return {
        "num_calls": len(calls),
        "num_tool_errors": len(errors) - errors.count(None),
        # a name that the model invented is no tool
        "tools": _once(
            record.call.name
            for record, error in zip(calls, errors, strict=True)
            if record.call is not None and error != "unknown_tool"
        ),
    }


def _error(record: CallRecord) -> str | None:
    """How a call failed; None where it did not, or where nobody knows its result."""
    if record.result is not None:
        return record.result.error
    return None if record.problem is None else record.problem.kind


def _once(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of first appearance."""
    return [encodable(name) for name in dict.fromkeys(names)]
