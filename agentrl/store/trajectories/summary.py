"""Trajectory summary: what a list shows of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.store.json_text import from_json
from agentrl.store.trajectories.columns import SUMMARY_COLUMNS, chosen
from agentrl.types import Purpose, StatusKind


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """What a list shows of a trajectory; the fields are ``columns.SUMMARY_COLUMNS``."""

    id: str
    group_index: int
    rollout_index: int
    attempt: int
    group_size: int
    label: str
    purpose: Purpose
    stage: str
    env: str
    agents: tuple[str, ...]
    step: int
    task_id: str
    data_source: str
    status: StatusKind
    status_reason: str
    reward: float | None
    rewards: Mapping[str, float]
    num_turns: int
    num_calls: int | None
    num_tool_errors: int | None
    tools: tuple[str, ...]
    num_policy_tokens: int
    num_tokens: int
    policy_version_min: int | None
    policy_version_max: int | None
    started_at: float
    ended_at: float
    recorded_at: float


def summary_of(row: Mapping[str, Any]) -> TrajectorySummary:
    """The summary of a stored row.

    Raises:
        StoreError: the row lacks a column.
        TypeError, ValueError: a column has a value of another type.
    """
    return _summary(*chosen(row, SUMMARY_COLUMNS).values())


def summaries_of(columns: Mapping[str, Sequence[Any]]) -> list[TrajectorySummary]:
    """The summaries of rows that are given by column.

    Raises:
        TypeError, ValueError: a column has a value of another type.
    """
    ordered = [columns[name] for name in SUMMARY_COLUMNS]
    return [_summary(*row) for row in zip(*ordered, strict=True)]


def _summary(*values: Any) -> TrajectorySummary:
    """The summary of the values of ``SUMMARY_COLUMNS``, in their order."""
    row = list(values)
    row[_AGENTS] = tuple(row[_AGENTS])
    row[_TOOLS] = tuple(row[_TOOLS])
    row[_REWARDS] = from_json(row[_REWARDS])
    return TrajectorySummary(*row)


_AGENTS = SUMMARY_COLUMNS.index("agents")
_TOOLS = SUMMARY_COLUMNS.index("tools")
_REWARDS = SUMMARY_COLUMNS.index("rewards")
