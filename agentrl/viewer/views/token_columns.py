"""Token columns: what is known of each number of a token, and why one may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.store import AnnotationColumn
from agentrl.store.annotations.annotation import FULL_COLUMNS, TOKEN_COLUMNS

DERIVED = AnnotationColumn(
    "difference",
    "token",
    "nats",
    "diverging",
    "Log-probability by the trainer before the step less that by the sampler (derived here).",
)
SAMPLED = (
    AnnotationColumn("logprobs", "token", "nats", help="Log-probability as it was sampled."),
    AnnotationColumn("policy_versions", "token", help="Version of the weights that sampled it."),
)
"""What the rollout itself recorded."""

ALTERNATIVES_MISSING = (
    "no likeliest tokens were recorded beside the sampled ones: store.detail: full asks an engine "
    "of token ids for them; an export with --redact leaves them out"
)

_KNOWN = {column.name: column for column in (*SAMPLED, DERIVED, *TOKEN_COLUMNS, *FULL_COLUMNS)}
_FULL = {column.name for column in FULL_COLUMNS}
_WHEN_THERE_IS_ONE = {"ref_logprobs": "a reference", "correction": "such a correction"}


def column_of(name: str, declared: Mapping[str, AnnotationColumn]) -> AnnotationColumn:
    """A column as the run declared it; else as this agentrl knows it, else by its name alone."""
    return declared.get(name) or _KNOWN.get(name) or AnnotationColumn(name, "token")


def missing_columns(
    found: Iterable[str], columns: Mapping[str, Any], note: str = ""
) -> dict[str, str]:
    """Why a trajectory lacks a column, and which setting records it, by the column's name.

    Args:
        found: the columns that it has.
        columns: of the trajectory's row.
        note: what the run's own setting is.
    """
    given = set(found)
    return {name: _why(name, columns, note) for name in _KNOWN if name not in given}


def _why(name: str, columns: Mapping[str, Any], note: str) -> str:
    if columns.get("purpose") != "train":
        return "nothing of an evaluation is trained"
    setting = "full" if name in _FULL else "tokens"
    where = _WHEN_THERE_IS_ONE.get(name)
    needs = f" and the algorithm has {where}" if where else ""
    return (
        "no step has recorded it for this trajectory; it is recorded where a step trains it with "
        f"store.detail: {setting}{needs}{note}"
    )
