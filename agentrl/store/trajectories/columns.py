"""Columns: what is stored of a trajectory, by name (docs/trajectory-format.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from agentrl.errors import StoreError

FORMAT = 2
"""The version of shards: those of another one are not read."""

FORMAT_KEY = b"agentrl.format"
"""Where a shard's metadata has its version."""

Row = dict[str, Any]
"""The columns of a trajectory but for its arrays, by name."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        type: in a shard.
        listed: whether a list of trajectories shows it (``TrajectorySummary``).
        secret: whether its text may quote secrets of the environment, which are masked.
        nullable: whether a value may be null.
    """

    type: pa.DataType
    listed: bool = True
    secret: bool = False
    nullable: bool = False


def _text(*, secret: bool = True) -> Column:
    return Column(pa.string(), listed=False, secret=secret)


COLUMNS: Mapping[str, Column] = {
    "id": Column(pa.string()),
    "group_index": Column(pa.int64()),
    "rollout_index": Column(pa.int32()),
    "attempt": Column(pa.int32()),
    "group_size": Column(pa.int32()),
    "label": Column(pa.string()),
    "purpose": Column(pa.string()),
    "stage": Column(pa.string()),
    "env": Column(pa.string()),
    "agents": Column(pa.list_(pa.string())),
    "step": Column(pa.int64()),
    "task_id": Column(pa.string()),
    "data_source": Column(pa.string()),
    "status": Column(pa.string()),
    "status_reason": Column(pa.string()),
    "status_detail": _text(),
    "reward": Column(pa.float64(), nullable=True),
    "rewards": Column(pa.string()),
    "reasons": _text(),
    "num_turns": Column(pa.int32()),
    "num_calls": Column(pa.int32(), nullable=True),
    "num_tool_errors": Column(pa.int32(), nullable=True),
    "tools": Column(pa.list_(pa.string())),
    "num_policy_tokens": Column(pa.int64()),
    "num_tokens": Column(pa.int64()),
    "policy_version_min": Column(pa.int64(), nullable=True),
    "policy_version_max": Column(pa.int64(), nullable=True),
    "started_at": Column(pa.float64()),
    "ended_at": Column(pa.float64()),
    "recorded_at": Column(pa.float64()),
    "prompt": _text(),
    "final_text": _text(),
    "turns": _text(),
    "task": _text(),
    "timings": _text(secret=False),
    "info": _text(),
    "first_state": _text(secret=False),  # a hash; what it names is masked
    "last_observed": _text(),
    "last_info": _text(),
}
"""Every column but the arrays, in the order of a shard."""

ARRAYS: Mapping[str, Column] = {
    "token_ids": Column(pa.list_(pa.int32()), listed=False),
    "kinds": Column(pa.list_(pa.int8()), listed=False),
    "turn_index": Column(pa.list_(pa.int32()), listed=False),
    "logprobs": Column(pa.list_(pa.float32()), listed=False),
    "policy_versions": Column(pa.list_(pa.int32()), listed=False),
}
"""Columns with an entry a token (``TokenArrays``)."""

SIDE = "side"
"""The column of the side arrays' bytes."""

SUMMARY_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.listed)
"""What a list of trajectories shows; reading them touches no text and no tokens."""

SECRET_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.secret)
"""Those whose text is masked before it is stored."""

SCHEMA = pa.schema(
    [
        *(
            pa.field(name, column.type, nullable=column.nullable)
            for name, column in {**COLUMNS, **ARRAYS}.items()
        ),
        pa.field(SIDE, pa.binary(), nullable=False),
    ],
    metadata={FORMAT_KEY: str(FORMAT).encode()},
)
"""Fixed: what varies from row to row is a JSON string, so that shards of any runs load together."""


def chosen(row: Mapping[str, Any], names: Iterable[str] = COLUMNS) -> Row:
    """Some columns of a row.

    Args:
        row: as stored; what else is in it is left out.
        names: the columns to give.

    Raises:
        StoreError: it lacks one.
    """
    try:
        return {name: row[name] for name in names}
    except KeyError as error:
        raise StoreError(f"trajectory {row.get('id')!r} has no column {error}") from error
