"""Keep rules: whether a trajectory fits one of ``store.keep``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from agentrl.store.store_spec import KeepSpec

COLUMNS = ("id", "group_index", "step", "label", "purpose", "stage", "reward", "recorded_at")
"""What the rules and their application look at."""


def fits(keep: KeepSpec, row: Mapping[str, Any]) -> bool:
    """Whether a trajectory that is older than ``last_steps`` stays by another rule.

    Args:
        keep: the rules.
        row: its columns.
    """
    reward = row["reward"]
    return (
        (keep.every_steps is not None and row["step"] % keep.every_steps == 0)
        or (keep.share is not None and _place(row) < keep.share)
        or (keep.reward_below is not None and reward is not None and reward < keep.reward_below)
        or (keep.reward_above is not None and reward is not None and reward > keep.reward_above)
        or any(_bears(row, label) for label in keep.labels)
    )


def _place(row: Mapping[str, Any]) -> float:
    """A number from 0 to 1 that a group has in every process; its rollouts stay together."""
    name = f"{row['stage']}/{row['label']}/{row['group_index']}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2.0**64


def _bears(row: Mapping[str, Any], label: str) -> bool:
    own = row["label"]
    return label in (row["purpose"], own) or (own != "" and f"{own}/".startswith(f"{label}/"))
