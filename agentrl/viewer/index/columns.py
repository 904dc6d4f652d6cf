"""Index columns: what the index knows of a trajectory, and the fields by which a query names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from agentrl.store.trajectories.columns import COLUMNS as STORED
from agentrl.store.trajectories.columns import SUMMARY_COLUMNS
from agentrl.types import Purpose, StatusKind

SEPARATOR = "\x1f"
"""Stands around each entry of a list column, as in ``\\x1fpython\\x1fsearch\\x1f``."""

ColumnKind = Literal["integer", "real", "text", "list", "json"]

_KINDS: Mapping[pa.DataType, ColumnKind] = {
    pa.int32(): "integer",
    pa.int64(): "integer",
    pa.float64(): "real",
    pa.string(): "text",
    pa.list_(pa.string()): "list",
}

COLUMNS: Mapping[str, ColumnKind] = {
    name: "json" if name == "rewards" else _KINDS[STORED[name].type] for name in SUMMARY_COLUMNS
}
"""The summary columns of a shard."""

JOINED: Mapping[str, ColumnKind] = {
    "drop_reason": "text",
    "trained_step": "integer",
    "labels": "list",
}
"""What is known from elsewhere: the ledger, and the labels of notes."""

NULLABLE = frozenset({"trained_step", *(name for name in SUMMARY_COLUMNS if STORED[name].nullable)})


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the query language.

    Args:
        sql: its expression over a row of the index.
        kind: how it is compared.
        choices: all values that it may have; empty where it is open.
    """

    sql: str
    kind: Literal["number", "text", "list"]
    choices: tuple[str, ...] = ()


FIELDS: Mapping[str, Field] = {
    "id": Field("id", "text"),
    "task": Field("task_id", "text"),
    "env": Field("env", "text"),
    "stage": Field("stage", "text"),
    "label": Field("label", "text"),
    "status": Field("status", "text", get_args(StatusKind)),
    "reason": Field("status_reason", "text"),
    "purpose": Field("purpose", "text", get_args(Purpose)),
    "source": Field("data_source", "text"),
    "drop": Field("drop_reason", "text"),
    "agent": Field("agents", "list"),
    "tool": Field("tools", "list"),
    "note": Field("labels", "list"),
    "step": Field("step", "number"),
    "trained_step": Field("+trained_step", "number"),
    "reward": Field("+reward", "number"),
    "turns": Field("+num_turns", "number"),
    "calls": Field("+num_calls", "number"),
    "tool_errors": Field("+num_tool_errors", "number"),
    "tokens": Field("+num_tokens", "number"),
    "policy_tokens": Field("+num_policy_tokens", "number"),
    "version": Field("+policy_version_max", "number"),
    "group": Field("group_index", "number"),
    "rollout": Field("+rollout_index", "number"),
    "attempt": Field("+attempt", "number"),
    "group_size": Field("+group_size", "number"),
    "seconds": Field("nullif(max(ended_at - started_at, 0), 0)", "number"),
}
"""By the name in a query; besides, ``reward.NAME`` is a reward part and ``text`` is the text.

A number's ``+`` keeps SQLite from an index, whose rows lie scattered: to scan all is four times as
fast where half of them fit. Those of a step lie together.
"""

FACETS = (
    "stage",
    "env",
    "status",
    "status_reason",
    "purpose",
    "label",
    "data_source",
    "tools",
    "agents",
    "drop_reason",
    "labels",
)
"""Columns whose values are counted."""

HISTOGRAMS = (
    "step",
    "reward",
    "num_turns",
    "num_calls",
    "num_tool_errors",
    "num_tokens",
    "num_policy_tokens",
    "policy_version_max",
)
"""Columns of numbers that are counted in bins."""


def joined(values: object) -> str:
    """A list as its column holds it."""
    names = [str(value) for value in values] if isinstance(values, list | tuple) else []
    return SEPARATOR + SEPARATOR.join(names) + SEPARATOR if names else ""


def split(text: str) -> list[str]:
    """The list of such a column."""
    return text.strip(SEPARATOR).split(SEPARATOR) if text else []
