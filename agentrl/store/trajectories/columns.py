"""Columns: what is stored of a trajectory, by name (docs/trajectory-format.md).

Format 1 has fewer columns, two of them under older names. Whatever is read passes through here, so
that nothing else knows of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from agentrl.errors import StoreError

FORMAT = 2
"""The version of shards that are written; those of an older one are read."""

FORMAT_KEY = b"agentrl.format"
"""Where a shard's metadata has its version; a shard of format 1 has none."""

Row = dict[str, Any]
"""The columns of a trajectory but for its arrays, by name."""

_NEEDED = object()


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        type: in a shard.
        empty: the value where a file lacks the column; without one the file cannot be read.
        listed: whether a list of trajectories shows it (``TrajectorySummary``).
        secret: whether its text may quote secrets of the environment, which are masked.
        nullable: whether a value may be null.
        old: its name in format 1, where that differs.
    """

    type: pa.DataType
    empty: Any = _NEEDED
    listed: bool = True
    secret: bool = False
    nullable: bool = False
    old: str = ""

    @property
    def needed(self) -> bool:
        """Whether no file can do without it."""
        return self.empty is _NEEDED


def _text(empty: Any, *, secret: bool = True) -> Column:
    return Column(pa.string(), empty, listed=False, secret=secret)


COLUMNS: Mapping[str, Column] = {
    "id": Column(pa.string()),
    "group_index": Column(pa.int64(), old="draw"),
    "rollout_index": Column(pa.int32(), old="sibling"),
    "attempt": Column(pa.int32(), 0),
    "group_size": Column(pa.int32(), 0),
    "label": Column(pa.string(), ""),
    "purpose": Column(pa.string(), "train"),
    "stage": Column(pa.string(), ""),
    "env": Column(pa.string(), ""),
    "agents": Column(pa.list_(pa.string()), ()),
    "step": Column(pa.int64()),
    "task_id": Column(pa.string(), ""),
    "data_source": Column(pa.string(), ""),
    "status": Column(pa.string()),
    "status_reason": Column(pa.string(), ""),
    "status_detail": _text(""),
    "reward": Column(pa.float64(), None, nullable=True),
    "rewards": Column(pa.string(), "{}"),
    "reasons": _text("{}"),
    "num_turns": Column(pa.int32()),
    "num_calls": Column(pa.int32(), None, nullable=True),
    "num_tool_errors": Column(pa.int32(), None, nullable=True),
    "tools": Column(pa.list_(pa.string()), ()),
    "num_policy_tokens": Column(pa.int64()),
    "num_tokens": Column(pa.int64()),
    "policy_version_min": Column(pa.int64(), None, nullable=True),
    "policy_version_max": Column(pa.int64(), None, nullable=True),
    "started_at": Column(pa.float64(), 0.0),
    "ended_at": Column(pa.float64(), 0.0),
    "recorded_at": Column(pa.float64(), 0.0),
    "prompt": _text(""),
    "final_text": _text(""),
    "turns": _text(_NEEDED),
    "task": _text(_NEEDED),
    "timings": _text("{}", secret=False),
    "info": _text("{}"),
    "first_state": _text("null", secret=False),  # a hash; what it names is masked
    "last_observed": _text("[]"),
    "last_info": _text("{}"),
}
"""Every column but the arrays, in the order of a shard."""

ARRAYS: Mapping[str, Column] = {
    "token_ids": Column(pa.list_(pa.int32()), listed=False),
    "kinds": Column(pa.list_(pa.int8()), listed=False),
    "turn_index": Column(pa.list_(pa.int32()), listed=False),
    "logprobs": Column(pa.list_(pa.float32()), listed=False),
    "policy_versions": Column(pa.list_(pa.int32()), -1, listed=False),
}
"""Columns with an entry a token (``TokenArrays``); ``empty`` is the entry where one is missing."""

SIDE = "side"
"""The column of the side arrays' bytes, empty where a file lacks it."""

NEEDED = frozenset(name for name, column in {**COLUMNS, **ARRAYS}.items() if column.needed)
"""Columns that no file can do without."""

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


def stored_name(name: str, found: Collection[str]) -> str | None:
    """Under which name a file has a column; None where it lacks it.

    Args:
        name: the column's name here.
        found: the names that the file has.
    """
    if name in found:
        return name
    old = COLUMNS[name].old if name in COLUMNS else ""
    return old if old in found else None


def completed(row: Mapping[str, Any], names: Iterable[str] = COLUMNS) -> Row:
    """The columns of a row of any format, under the names of today.

    Args:
        row: as stored; what is unknown in it is left out.
        names: the columns to give.

    Raises:
        StoreError: it lacks a column that has no empty value.
    """
    whole = {}
    for name in names:
        stored = stored_name(name, row)
        if stored is None and name in NEEDED:
            raise StoreError(f"trajectory {row.get('id')!r} has no column {name!r}")
        whole[name] = COLUMNS[name].empty if stored is None else row[stored]
    return whole
